"""Rewards less the mean of their prompt: the function that slime's rollout manager loads."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

#: The estimators that slime normalises rewards for, and those of them that it divides by the deviation too.
SCALED = ("grpo", "gspo", "cispo")
NORMALISED = (*SCALED, "reinforce_plus_plus_baseline")


def by_prompt(args: Any, samples: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return the rewards of samples as they are, and less the mean reward of their prompt's rollouts.

    A prompt is a `group_index`. A rollout counts once, with the mean reward of its samples, and is what the
    loss of the release counts once: the samples of a `rollout_id` in 0.3.1, of a `group_id` in 0.3.0, and
    each sample where there is neither. Where the standard deviation is divided by, it is that of the
    rollouts. One rollout alone has nothing to be compared with, and gets 0.

    Args:
        args: slime's arguments.
        samples: At least one. If one of them has no `group_index`, they are taken for consecutive groups of
            `n_samples_per_prompt` if that is how many there are, else for one group, as slime takes them.

    """
    raw = [sample.get_reward_value(args) for sample in samples]
    if args.advantage_estimator not in NORMALISED or not args.rewards_normalization:
        return raw, raw
    prompts = _prompts(args, samples)
    rollouts: dict[tuple[Hashable, Hashable], list[int]] = {}
    for position, sample in enumerate(samples):
        rollouts.setdefault((prompts[position], _rollout(sample, position)), []).append(position)
    scaled = args.advantage_estimator in SCALED and args.grpo_std_normalization
    found = _normalised(raw, rollouts, scaled=scaled)
    alone: dict[tuple[Hashable, Hashable], list[int]]
    alone = {(prompt, ("sample", at)): [at] for at, prompt in enumerate(_in_a_row(args, len(samples)))}
    _count(found, found if alone == rollouts else _normalised(raw, alone, scaled=scaled))
    return raw, found


def _count(found: list[float], theirs: list[float]) -> None:
    """Count the rewards that differ from those as slime normalises them."""
    from overlay.patches.slime.group_baseline.effect import EFFECT

    # Far above what float32 loses.
    away = [far for one, other in zip(found, theirs, strict=True) if (far := abs(one - other)) > 1e-4]  # noqa: PLR2004
    EFFECT.calls += 1
    EFFECT.changed += bool(away)
    EFFECT.rewards += len(away)
    EFFECT.off = max([EFFECT.off, *away])


def _normalised(
    raw: list[Any], rollouts: dict[tuple[Hashable, Hashable], list[int]], *, scaled: bool
) -> list[float]:
    """Return the rewards normalised, given the positions of the samples of each prompt's rollouts."""
    import torch

    rewards = torch.tensor(raw, dtype=torch.float)
    found = torch.empty_like(rewards)
    groups: dict[Hashable, list[list[int]]] = {}
    for (prompt, _), positions in rollouts.items():
        groups.setdefault(prompt, []).append(positions)
    # As many as possible in one matrix: where slime's groups are these, so are its numbers, to the last bit.
    for size in {len(group) for group in groups.values()}:
        alike = [group for group in groups.values() if len(group) == size]
        means = [[rewards[positions].mean() for positions in group] for group in alike]
        table = torch.stack([torch.stack(row) for row in means])
        center = table.mean(dim=-1, keepdim=True)
        spread = (table - center).std(dim=-1, keepdim=True) if scaled and size > 1 else None
        for row, group in enumerate(alike):
            positions = [position for own in group for position in own]
            found[positions] = rewards[positions] - center[row]
            if spread is not None:
                found[positions] = found[positions] / (spread[row] + 1e-6)
    return [float(value) for value in found.tolist()]


def _rollout(sample: Any, position: int) -> Hashable:
    """Return what a sample's rollout is told by: what the loss of the release goes by."""
    if hasattr(sample, "group_id"):
        known = sample.index if sample.group_id is None else sample.group_id
    else:
        known = getattr(sample, "rollout_id", None)
    return ("sample", position) if known is None else ("rollout", known)


def _prompts(args: Any, samples: Sequence[Any]) -> list[Hashable]:
    """Return what the prompt of each sample is told by."""
    known = [sample.group_index for sample in samples]
    if None not in known:
        return known
    size = args.n_samples_per_prompt
    if len(samples) == size * args.rollout_batch_size:
        return _in_a_row(args, len(samples))
    from overlay import log

    log.warning(
        f"slime.group-baseline: {known.count(None)} of {len(samples)} samples have no group_index, and there "
        f"are not {size} for each of {args.rollout_batch_size} prompts: all are one group, as in slime alone"
    )
    return _in_a_row(args, len(samples))


def _in_a_row(args: Any, count: int) -> list[Hashable]:
    """Return the prompt of each sample as slime takes it: groups in a row if that is their number."""
    size = args.n_samples_per_prompt
    return [at // size if count == size * args.rollout_batch_size else 0 for at in range(count)]
