"""What has slime's rollout manager load the function that normalises rewards by prompt."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from overlay.patches.slime.group_baseline.rewards import NORMALISED, by_prompt

#: As `--custom-reward-post-process-path` takes it.
PATH = f"{by_prompt.__module__}.{by_prompt.__name__}"


def make_manager(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build `create_rollout_manager`, which hands the actor its arguments with the function as an option.

    A function that the user asks for stays. Once the actor has been started the arguments are as they were.
    With one rollout for each prompt there is nothing to compare it with: slime's rule stays.
    """
    from overlay import log

    def create_rollout_manager(args: Any, pg: Any) -> Any:
        normalised = args.advantage_estimator in NORMALISED and args.rewards_normalization
        if args.custom_reward_post_process_path is not None or not normalised:
            return original(args, pg)
        if args.n_samples_per_prompt == 1:
            log.warning(
                "slime.group-baseline does nothing with --n-samples-per-prompt 1: no prompt has two rollouts"
            )
            return original(args, pg)
        args.custom_reward_post_process_path = PATH
        try:
            return original(args, pg)
        finally:
            args.custom_reward_post_process_path = None

    return create_rollout_manager
