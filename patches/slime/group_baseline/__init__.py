"""`slime.group-baseline`: a reward is compared with those of the same prompt, however many samples there are.

The class of the rollout manager, a Ray actor, is not the one at its name. So slime is given a function by its
own `--custom-reward-post-process-path`, unless the user has given one.
"""

from typing import Any

from overlay import log
from overlay.compat.projects import SLIME
from overlay.effect import Figure, effect
from overlay.patch import Patch, around, one_target, replaced, variant
from overlay.patches.slime.group_baseline.rewards import NORMALISED, by_prompt

EFFECT = effect(
    __name__,
    "rollout",
    Figure(name="rewards", says="rewards that slime would have normalised otherwise"),
    Figure(name="off", says="the most by which one would have been off", combine="max"),
    then="without it {rewards} rewards off, by up to {off}",
)
#: As `--custom-reward-post-process-path` takes it.
PATH = f"{by_prompt.__module__}.{by_prompt.__name__}"


@around
def create_manager(original: Any, args: Any, *given: Any, **named: Any) -> Any:
    """Start the actor with the function as an option, and then restore the arguments."""
    normalised = args.advantage_estimator in NORMALISED and args.rewards_normalization
    if args.custom_reward_post_process_path is not None or not normalised:
        return original(args, *given, **named)
    if args.n_samples_per_prompt == 1:  # there is nothing to compare a rollout with
        log.warning(
            "slime.group-baseline does nothing with --n-samples-per-prompt 1: no prompt has two rollouts"
        )
        return original(args, *given, **named)
    args.custom_reward_post_process_path = PATH
    try:
        return original(args, *given, **named)
    finally:
        args.custom_reward_post_process_path = None


PATCH = Patch(
    id="slime.group-baseline",
    summary="Rewards are normalised by prompt, also where samples were trimmed or a rollout has several",
    why="slime takes the rewards of a step for groups of --n-samples-per-prompt if their number says so, and "
    "otherwise for one group: with samples trimmed to a multiple of the global batch size, a dynamic batch "
    "size or rollouts of several samples, each reward is compared with the mean of the whole batch. An easy "
    "prompt gets a positive advantage, a hard one a negative. With the patch the group is the prompt "
    "(Sample.group_index), and each sample counts, as in slime's grpo_normalize_by_group_index (0.3.0); one "
    "that is alone gets 0, and equal rewards are not divided by 1e-6. It yields to "
    "--custom-reward-post-process-path, and does nothing with --n-samples-per-prompt 1.",
    changes=("numbers",),
    opt_in=True,
    met="GRPO, GSPO, CISPO or REINFORCE++-baseline with rewards normalised, in steps whose samples are not "
    "--n-samples-per-prompt for each of --rollout-batch-size prompts, or not in the order of their prompts.",
    upstream=("THUDM/slime#1930", "THUDM/slime#1933"),
    evidence="It takes one of two readings: each sample counts, as in grpo_normalize_by_group_index, which "
    "slime's tests of several samples put in place of the default. miles counts a rollout once.",
    targets=one_target(
        SLIME,
        variant(
            "0.2",
            replaced("slime.ray.placement_group:create_rollout_manager", create_manager),
            "slime.ray.rollout:RolloutManager._post_process_rewards",
        ),
    ),
)
