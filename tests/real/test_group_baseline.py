"""slime.group-baseline on slime's own rollout manager as a Ray actor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from checks import SEED

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.real

#: Prints the rewards of a manager that is what it is in a job: an actor in a process of its own, in which
#: overlay is not enabled. And those of plain arithmetic.
PROGRAM = """
import json, os, random, sys
import ray
import overlay
import overlay.compat.megatron_on_cpu  # before Megatron
from overlay.compat.cuda_on_cpu import cuda_on_cpu
from overlay.compat.no_triton import no_triton
from overlay.compat.slime_on_cpu import reward_groups, stand_in

os.environ["OVERLAY"] = "0"  # else the driver would arm the actor
overlay.enable(["slime.group-baseline"], strict=True)
rewards = reward_groups.drawn(random.Random(sys.argv[1]))["trimmed"]
with no_triton(), cuda_on_cpu():
    stand_in()
    import slime.ray.placement_group as placement

    # A cluster of its own: there may be another one on this machine.
    ray.init(
        address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error",
        runtime_env={"worker_process_setup_hook": "overlay.compat.slime_on_cpu.stand_in"},
    )
    try:
        manager, _ = placement.create_rollout_manager(reward_groups._Unset(**reward_groups.ARGUMENTS), None)
        _, found = ray.get(manager._post_process_rewards.remote(reward_groups.samples(rewards)))
    finally:
        ray.shutdown()
print(json.dumps({"found": found, "wanted": reward_groups.wanted(rewards, scaled=True)}))
"""


@pytest.mark.parametrize("revision", ["v0.2.4", "v0.3.1"])
def test_the_manager_normalises_by_prompt_as_an_actor_in_which_overlay_is_not_enabled(
    revision: str, tmp_path: Path, slime: Callable[[str], Path], findings: Callable[..., dict[str, Any]]
) -> None:
    program = tmp_path / "normalised.py"
    program.write_text(PROGRAM)
    told = findings(slime(revision), str(program), SEED)
    assert told["found"] == pytest.approx(told["wanted"], abs=1e-4), SEED
