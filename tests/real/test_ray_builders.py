"""What upstreams do with a `runtime_env`: their own code, up to the call that would start something."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from command_line import python
from listed_sources import Listed

pytestmark = pytest.mark.real

#: Runs verl's `run_ppo` until it starts Ray. The trainer, which it only names, needs a rollout server.
VERL = """
import json, sys
from unittest.mock import MagicMock
import overlay.ray, ray
from omegaconf import OmegaConf

for name in ("verl.experimental.reward_loop", "verl.trainer.ppo.ray_trainer", "verl.trainer.distillation"):
    sys.modules[name] = MagicMock()

def init(**arguments):
    print(json.dumps(arguments["runtime_env"]))
    sys.exit()

ray.init = init
from verl.trainer.main_ppo import run_ppo

settings = {"num_cpus": 1, "runtime_env": overlay.ray.runtime_env()}
run_ppo(OmegaConf.create({"ray_kwargs": {"ray_init": settings}, "transfer_queue": {"enable": True}}))
"""

#: Runs slime's `execute_train` with a shell that only listens: the real one ends processes by their names.
SLIME_LAUNCH = """
import json, sys
from types import ModuleType
import overlay.ray

heard = []
def listen(command, capture_output=False):
    heard.append(command)
    return "0"

for name, contents in {
    "slime.utils.misc": {"exec_command": listen},
    "slime.utils.external_utils.typer_utils": {"dataclass_cli": None},
}.items():
    sys.modules[name] = ModuleType(name)
    vars(sys.modules[name]).update(contents)
from slime.utils.external_utils import command_utils

assert command_utils.exec_command is listen
command_utils.execute_train("--x 1", 8, None, extra_env_vars=overlay.ray.variables())
(submit,) = [command for command in heard if "ray job submit" in command]
print(submit.partition("--runtime-env-json='")[2].partition("'")[0])
"""

#: Builds the variables of a slime actor, which Ray merges with those of the job.
SLIME_ACTOR = """
import json, sys
from unittest.mock import MagicMock

sys.modules["slime.ray.ray_actor"] = MagicMock(RayActor=object)
from slime.ray.utils import add_default_ray_env_vars

print(json.dumps({"env_vars": add_default_ray_env_vars({"OWN": "yes"})}))
"""


def built(code: str, *path: Path, **environ: str) -> dict[str, Any]:
    """Run code with overlay armed and return the `runtime_env` that it prints."""
    environ["PYTHONPATH"] = os.pathsep.join(map(str, path))
    done = python("-W", "ignore", "-c", code, seconds=180, **environ)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(lines[-1])
    return found


@pytest.mark.parametrize(
    ("code", "source", "theirs"),
    [
        # And what it has of its own.
        (VERL, "verl==0.8.0", {"TOKENIZERS_PARALLELISM": "true", "TRANSFER_QUEUE_ENABLE": "1"}),
        (SLIME_LAUNCH, "slime==v0.2.4", {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}),
    ],
    ids=["verl", "slime"],
)
def test_what_arms_is_kept(code: str, source: str, theirs: dict[str, str], listed: Listed) -> None:
    selected = f"{source[:5].rstrip('=')}.*"
    variables = built(code, listed(source), OVERLAY_PATCHES=selected)["env_vars"]
    assert variables.items() >= {"OVERLAY": "1", "OVERLAY_PATCHES": selected, **theirs}.items()


def test_slime_sets_no_variable_of_overlay_for_its_actors(listed: Listed) -> None:
    # So that those of the job reach them: tests/workers/test_ray.py, "actor with variables of its own".
    made = built(SLIME_ACTOR, listed("slime==v0.3.1"), OVERLAY="1")["env_vars"]
    assert made["OWN"] == "yes"
    assert not [name for name in made if name.startswith("OVERLAY")]


PLUGIN = "import sys, verl; print('{}' if 'overlay' not in sys.modules else __import__('json').dumps({"
PLUGIN += "'enabled': sys.modules['overlay'].status().enabled}))"


@pytest.mark.parametrize("armed", [True, False])
def test_verl_opens_the_second_door(listed: Listed, tmp_path: Path, armed: bool) -> None:
    """The entry point is found by verl itself; no start-up file is there (`-S` would hide all packages)."""
    metadata = tmp_path / "door-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: door\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[verl.plugins]\noverlay = overlay.compat.verl_plugin\n")
    found = built(PLUGIN, tmp_path, listed("verl==0.9.1"), OVERLAY="1" if armed else "0")
    assert found.get("enabled", False) is armed


@pytest.mark.parametrize("version", ["0.9.0", "0.9.1"])
def test_verl_has_the_second_door_from_0_9_on(listed: Listed, version: str) -> None:
    assert 'group="verl.plugins"' in (listed(f"verl=={version}") / "verl/__init__.py").read_text()
    assert "verl.plugins" not in (listed("verl==0.8.0") / "verl/__init__.py").read_text()
