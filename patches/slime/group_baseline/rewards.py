"""Rewards less the mean of their prompt: the function that slime's rollout manager loads."""

from collections.abc import Hashable, Sequence
from typing import Any

#: The estimators that slime normalises rewards for, and those of them that it divides by the deviation too.
SCALED = ("grpo", "gspo", "cispo")
NORMALISED = (*SCALED, "reinforce_plus_plus_baseline")


def by_prompt(args: Any, samples: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return the rewards of samples as they are, and less the mean reward of their prompt's samples.

    Where slime divides by the standard deviation, it is that of the same samples. A sample that is alone, or
    whose prompt's rewards are all equal, is not divided. If one of the `samples` (at least one) has no
    `group_index`, or no two have the same, slime's own rule holds: consecutive groups of
    `n_samples_per_prompt` if that is how many there are, else one group.
    """
    raw = [sample.get_reward_value(args) for sample in samples]
    if args.advantage_estimator not in NORMALISED or not args.rewards_normalization:
        return raw, raw
    scaled = args.advantage_estimator in SCALED and args.grpo_std_normalization
    prompts, theirs = _prompts(args, samples), _in_a_row(args, len(samples))
    found = _normalised(raw, prompts, scaled=scaled)
    pairs = zip(found, _normalised(raw, theirs, scaled=scaled), strict=True)
    # Far above what float32 loses.
    away = [far for one, other in pairs if (far := abs(one - other)) > 1e-4]  # noqa: PLR2004
    from overlay.patches.slime.group_baseline import EFFECT

    EFFECT.calls += 1
    EFFECT.changed += bool(away)
    EFFECT.rewards += len(away)
    EFFECT.off = max([EFFECT.off, *away])
    return raw, found


def _normalised(raw: list[Any], prompts: Sequence[Hashable], *, scaled: bool) -> list[float]:
    """Return the rewards less the mean of their prompt, over its standard deviation if `scaled`."""
    import torch

    rewards = torch.tensor(raw, dtype=torch.float)
    groups: dict[Hashable, list[int]] = {}
    for position, prompt in enumerate(prompts):
        groups.setdefault(prompt, []).append(position)
    # As many as possible in one matrix: where slime's groups are these, so are its numbers, to the last bit.
    for size in {len(group) for group in groups.values()}:
        places = torch.tensor([group for group in groups.values() if len(group) == size])
        table = rewards[places]
        table = table - table.mean(dim=-1, keepdim=True)
        if scaled and size > 1:
            spread = table.std(dim=-1, keepdim=True)
            # Of equal rewards all that is left is rounding, which a division by 1e-6 would blow up.
            table = torch.where(spread > 0, table / (spread + 1e-6), table)
        rewards[places] = table
    return [float(value) for value in rewards.tolist()]


def _prompts(args: Any, samples: Sequence[Any]) -> Sequence[Hashable]:
    """Return what the prompt of each sample is told by."""
    known = [sample.group_index for sample in samples]
    if None not in known and len(set(known)) < len(known):
        return known
    from overlay import log

    log.warning(
        "slime.group-baseline: there are samples without a group_index, or none that share one: they are "
        "grouped as in slime alone, in a row if there are --n-samples-per-prompt for each of "
        "--rollout-batch-size prompts, else all together"
    )
    return _in_a_row(args, len(samples))


def _in_a_row(args: Any, count: int) -> Sequence[Hashable]:
    """Return the prompt of each sample as slime takes it: groups in a row if that is their number."""
    size = args.n_samples_per_prompt
    return [at // size if count == size * args.rollout_batch_size else 0 for at in range(count)]
