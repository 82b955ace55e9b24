"""The option in docs/running.md, on the configuration of each release of verl."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.real

hydra = pytest.importorskip("hydra")

PAGE = (Path(__file__).parents[2] / "docs/running.md").read_text()


@pytest.mark.parametrize("version", ["0.7.0", "0.7.1", "0.8.0", "0.9.0", "0.9.1"])
@pytest.mark.filterwarnings("ignore::UserWarning:hydra")
def test_the_variable_reaches_the_runtime_environment(version: str, listed: Callable[[str], Path]) -> None:
    (line,) = re.findall(r"^python -m verl.trainer.main_ppo .*$", PAGE, re.MULTILINE)
    option = shlex.split(line)[-1]
    folder = listed(f"verl=={version}") / "verl/trainer"
    with hydra.initialize_config_dir(str(folder / "config"), version_base=None):
        config = hydra.compose("ppo_trainer", overrides=[option])
    assert config.ray_kwargs.ray_init.runtime_env.env_vars.OVERLAY == "1"
    # Where the trainer takes it from.
    source = (folder / "main_ppo.py").read_text()
    assert re.search(r'ray_kwargs\.get\("ray_init".*?\.get\("runtime_env"', source, re.DOTALL)
