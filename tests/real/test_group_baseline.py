"""slime.group-baseline on slime's own rollout manager as a Ray actor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from checks import SEED

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.real


@pytest.mark.parametrize("revision", ["v0.2.4", "v0.3.1"])
def test_the_manager_normalises_by_prompt_as_an_actor_in_which_overlay_is_not_enabled(
    revision: str, slime: Callable[[str], Path], findings: Callable[..., dict[str, Any]]
) -> None:
    told = findings(slime(revision), "group_baseline_ray.py", SEED)
    assert told["found"] == pytest.approx(told["wanted"], abs=1e-4), SEED
