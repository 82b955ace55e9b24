"""Normalise drawn rewards with the rollout manager of the slime that is first on the path; print JSON.

    python group_baseline_ray.py SEED

The manager is what it is in a job: a Ray actor in a process of its own, in which overlay is not enabled.
"""

from __future__ import annotations

import json
import os
import random
import sys

import ray

import overlay
import overlay.compat.megatron_on_cpu  # before Megatron
from overlay.compat.cuda_on_cpu import cuda_on_cpu
from overlay.compat.no_triton import no_triton
from overlay.compat.slime_on_cpu import reward_groups, stand_in


def main(seed: str) -> None:
    """Print the rewards of the actor, and those of plain arithmetic."""
    # In the actor it is not: else the driver would arm it.
    os.environ["OVERLAY"] = "0"
    overlay.enable(["slime.group-baseline"], strict=True)
    rewards = reward_groups.drawn(random.Random(seed))["trimmed"]
    hook = "overlay.compat.slime_on_cpu.stand_in"
    with no_triton(), cuda_on_cpu():
        stand_in()
        import slime.ray.placement_group as placement

        # A cluster of its own: there may be another one on this machine.
        ray.init(
            address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error",
            runtime_env={"worker_process_setup_hook": hook},
        )  # fmt: skip
        try:
            args = reward_groups.Unset(**reward_groups.ARGUMENTS)
            manager, _ = placement.create_rollout_manager(args, None)
            _, found = ray.get(manager._post_process_rewards.remote(reward_groups.samples(rewards)))
        finally:
            ray.shutdown()
    print(json.dumps({"found": found, "wanted": reward_groups.wanted(rewards, scaled=True)}))


if __name__ == "__main__":
    main(sys.argv[1])
