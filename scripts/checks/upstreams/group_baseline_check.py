"""Normalise drawn rewards with the rollout manager of the slime that is first on the path; print JSON.

    python group_baseline_check.py SEED [ray]

First with overlay, then, after `overlay.disable()`, as released. With `ray`, with overlay alone, and the
manager is what it is in a job: an actor in a process of its own, in which overlay is not enabled.
"""

from __future__ import annotations

import json
import os
import random
import sys
from typing import Any

import overlay
import overlay.compat.megatron_on_cpu  # before Megatron
from overlay.compat.cuda_on_cpu import cuda_on_cpu
from overlay.compat.no_triton import no_triton
from overlay.compat.slime_on_cpu import reward_groups, stand_in

PATCH = "slime.group-baseline"


def look(seed: str) -> dict[str, Any]:
    """Return what is wrong, and what becomes of rewards that slime groups rightly and of odd ones."""
    groups = reward_groups.drawn(random.Random(seed))
    whole, trimmed = reward_groups.samples(groups["whole"]), reward_groups.samples(groups["trimmed"])
    nameless = reward_groups.samples(groups["whole"]), reward_groups.samples(groups["trimmed"])
    for sample in (nameless[0][3], *nameless[1]):
        sample.group_index = None
    with reward_groups.manager() as one:
        found = [one._post_process_rewards(given)[1] for given in (whole, *nameless)]
    with reward_groups.manager(custom_reward_post_process_path=f"{__name__}.theirs") as one:
        asked = one._post_process_rewards(trimmed)
    return {
        "faults": list(reward_groups.faults(seed)),
        "whole": found[0],
        "nameless": found[1:],
        "theirs": asked == theirs(None, trimmed),
    }


def theirs(_args: Any, samples: list[Any]) -> Any:
    """Stand for the function of a user."""
    return [sample.reward for sample in samples], [sample.reward + 1 for sample in samples]


def on_ray(seed: str) -> dict[str, Any]:
    """Return the rewards of the actor, and those of plain arithmetic."""
    import ray
    import slime.ray.placement_group as placement

    rewards = reward_groups.drawn(random.Random(seed))["trimmed"]
    hook = "overlay.compat.slime_on_cpu.stand_in"
    # A cluster of its own: there may be another one on this machine.
    ray.init(
        address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error",
        runtime_env={"worker_process_setup_hook": hook},
    )  # fmt: skip
    try:
        args = reward_groups._Unset(**reward_groups.ARGUMENTS)
        manager, _ = placement.create_rollout_manager(args, None)
        _, found = ray.get(manager._post_process_rewards.remote(reward_groups.samples(rewards)))
    finally:
        ray.shutdown()
    return {"found": found, "wanted": reward_groups.wanted(rewards, scaled=True, together=True)}


def main() -> None:
    """Print what is found."""
    seed = sys.argv[1]
    # In the actor it is not: else the driver would arm it.
    os.environ["OVERLAY"] = "0"
    overlay.enable([PATCH], strict=True)
    with no_triton(), cuda_on_cpu():
        stand_in()
        import slime.ray.placement_group  # noqa: F401 -- for overlay to patch it

        if sys.argv[2:] == ["ray"]:
            print(json.dumps(on_ray(seed)))
            return
        ours = look(seed)
        overlay.disable()
        print(json.dumps({"overlay": ours, "released": look(seed)}))


if __name__ == "__main__":
    main()
