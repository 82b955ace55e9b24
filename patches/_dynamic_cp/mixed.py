"""Plans with several context parallel sizes: for the micro-batches of a step, and for one that is given.

Several ways to cut are tried, those of others among them. The best are improved by exchanges, and the one
that takes least by the model of `cost` is the plan. A step takes what the slowest subgroup of each
micro-batch takes, in sum: so it is where pipeline stages or experts make ranks wait for each other, and
elsewhere it is no less.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter

from overlay.patches._dynamic_cp.cuts import Cuts, Step
from overlay.patches._dynamic_cp.plan import Plan, check_longest, plan_uniform

#: The sequences of a micro-batch, ascending, and its plan, which counts them from 0.
MicroBatch = tuple[list[int], Plan]

_SIZE, _LOAD = attrgetter("size"), attrgetter("load")


def plan_step(lengths: Sequence[int], ranks: int, cap: int, budget: int) -> list[MicroBatch]:
    """Plan the micro-batches of a step.

    Args:
        lengths: Tokens of each sequence, at least one sequence.
        ranks: W, the number of data parallel ranks, a power of two.
        cap: Tokens of one sequence that a rank can hold (`max_seqlen_per_dp_cp_rank`).
        budget: Tokens of a whole micro-batch that a rank can hold (`max_token_len_per_gpu`).

    Returns:
        Micro-batches, in which each sequence is once, no rank is without work, and no subgroup of C ranks has
        more than C times the budget.

    Raises:
        ValueError: All ranks together cannot hold the longest sequence, there is none, or W is no power of
            two.

    """
    _check(lengths, ranks, cap)
    if budget < 1 or max(lengths) > ranks * budget:
        raise ValueError(
            f"a sequence of {max(lengths)} tokens is too long for a micro-batch: W={ranks} data parallel "
            f"ranks hold max_token_len_per_gpu={budget} tokens each. Raise max_token_len_per_gpu, use more "
            "data parallel ranks, or shorten or drop the sequence."
        )
    cuts = Cuts(lengths, ranks, min(cap, budget), budget)
    cuts.of_step()
    return _placed(cuts.best(), ranks)


def plan_mixed(lengths: Sequence[int], ranks: int, cap: int, budget: int | None = None) -> Plan:
    """Plan a micro-batch whose sequences are given. Arguments and errors are as in `plan_step`.

    The budget may be unlimited. Where no plan is found that holds it, the plan is `plan_uniform`'s.
    """
    _check(lengths, ranks, cap)
    most = max(1, sum(lengths)) if budget is None else budget
    # What all ranks together do not hold is held by no plan.
    if most >= 1 and sum(lengths) <= ranks * most:
        cuts = Cuts(lengths, ranks, min(cap, most), most)
        cuts.of_micro_batch()
        if cuts.found:
            ((_, plan),) = _placed(cuts.best(), ranks)
            return plan
    return plan_uniform(lengths, ranks, cap, budget)


def _check(lengths: Sequence[int], ranks: int, cap: int) -> None:
    if not lengths:
        raise ValueError("a micro-batch without sequences cannot be split")
    if ranks & (ranks - 1):
        raise ValueError(
            f"OVERLAY_DCP=mixed takes a power of two of data parallel ranks, not W={ranks}: set it to uniform"
        )
    check_longest(lengths, ranks, cap)


def _placed(step: Step, ranks: int) -> list[MicroBatch]:
    """Give subgroups their ranks: those with most to do where there was least to do before.

    It makes no micro-batch shorter, and is for ranks that do not wait for each other between micro-batches.
    """
    level = [0] * ranks
    busy = level
    found: list[MicroBatch] = []
    for members in step:
        if len(members) == 1:
            # Then all are busy for as long as the busiest, which changes nothing in who has least to do.
            indices = sorted(members[0].indices)
            found.append((indices, ((0, ranks, tuple(range(len(indices)))),)))
            busy = level
            continue
        indices = sorted([index for member in members for index in member.indices])
        number = {index: place for place, index in enumerate(indices)}
        if busy is level:
            busy = level[:]
        taken = [False] * ranks
        plan = []
        # Falling sizes: whoever takes more ranks is served before, so what is free is whole blocks of a size.
        for size, alike in groupby(members, key=_SIZE):
            free = [start for start in range(0, ranks, size) if not taken[start]]
            until = busy if size == 1 else {start: max(busy[start : start + size]) for start in free}
            free.sort(key=until.__getitem__)
            for start, member in zip(free, sorted(alike, key=_LOAD, reverse=True), strict=False):
                plan.append((start, size, tuple(sorted([number[index] for index in member.indices]))))
                taken[start : start + size] = [True] * size
                busy[start : start + size] = [until[start] + member.load] * size
        found.append((indices, tuple(sorted(plan))))
    return found
