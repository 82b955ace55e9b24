"""`slime.group-baseline`: a reward is compared with those of the same prompt, however many samples there are.

The rollout manager is a Ray actor: the class at its name is not the one that Ray sends to the actor, and its
methods are in no module. But slime has an option for just this, `--custom-reward-post-process-path`, which
the actor loads in its own process. So the function that starts the actor passes it the path of a function of
this patch, unless the user has given one.

Each sample counts, as in slime's own function by `group_index`, and the deviation is that of the same samples
whose differences it divides.
"""

from __future__ import annotations

from overlay.compat.projects import SLIME
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches.slime.group_baseline.fix import make_manager

_MANAGER = "slime.ray.placement_group:create_rollout_manager"
_REWARDS = "slime.ray.rollout:RolloutManager._post_process_rewards"

PATCH = Patch(
    id="slime.group-baseline",
    revision=2,
    summary="Rewards are normalised by prompt, also where samples were trimmed or a rollout has several",
    why=(
        "slime takes the rewards of a step for groups of --n-samples-per-prompt if that is how many there "
        "are, and for one group if not: with samples trimmed to a multiple of the global batch size, a "
        "dynamic batch size or rollouts of several samples, each reward is compared with the mean of the "
        "whole batch, without a word. A prompt that is always solved gets a positive advantage, and a hard "
        "one a negative. With the patch the group is the prompt (Sample.group_index), and each of its "
        "samples counts, as in slime's grpo_normalize_by_group_index (0.3.0). It has no number for a sample "
        "that is alone, which gets 0 here. Where slime's groups are the prompts, its numbers stay, but that "
        "rewards which are all equal are not divided by 1e-6. It is one reading of two: miles counts a "
        "rollout once, however many samples it has. A function given by --custom-reward-post-process-path "
        "goes before the patch, which does nothing with --n-samples-per-prompt 1."
    ),
    changes=("numbers",),
    opt_in=True,
    met=(
        "GRPO, GSPO, CISPO or REINFORCE++-baseline with rewards normalised, in steps whose samples are not "
        "--n-samples-per-prompt for each of --rollout-batch-size prompts, or not in the order of their "
        "prompts."
    ),
    upstream=("THUDM/slime#1930", "THUDM/slime#1933"),
    evidence=(
        "It takes one of two readings: each sample counts, as in grpo_normalize_by_group_index, which "
        "slime's tests of several samples put in place of the default. miles counts a rollout once."
    ),
    targets=one_target(
        SLIME,
        variant(
            "0.2",
            replaced(_MANAGER, make_manager),
            _REWARDS,
        ),
    ),
)
