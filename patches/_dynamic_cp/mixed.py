"""Plans with several context parallel sizes: for the micro-batches of a step, and for one that is given.

Several ways to cut are tried, those of others among them. The best are improved by exchanges, and the one
that takes least by the model of `cost` is the plan. A step takes what the slowest subgroup of each
micro-batch takes, in sum: so it is where pipeline stages or experts make ranks wait for each other, and
elsewhere it is no less.
"""

from __future__ import annotations

from itertools import groupby

from overlay.patches._dynamic_cp.even import even
from overlay.patches._dynamic_cp.exchange import improve
from overlay.patches._dynamic_cp.others import starts
from overlay.patches._dynamic_cp.plan import allowed_sizes, check_longest, plan_uniform
from overlay.patches._dynamic_cp.windows import windows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from overlay.patches._dynamic_cp.plan import Plan
    from overlay.patches._dynamic_cp.windows import Subgroup

    Step = list[list[Subgroup]]
    #: The sequences of a micro-batch, ascending, and its plan, which counts them from 0.
    MicroBatch = tuple[list[int], Plan]

#: With more sequences the plainest cut is within a few hundredths of what the model allows, and is the plan.
MANY = 512
#: How many of the ways to cut are improved, the best of them, and how many exchanges are looked at for each.
IMPROVED, TRIES = 4, 20_000


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
        msg = (
            f"a sequence of {max(lengths)} tokens is too long for a micro-batch: W={ranks} data parallel "
            f"ranks hold max_token_len_per_gpu={budget} tokens each. Raise max_token_len_per_gpu, use more "
            "data parallel ranks, or shorten or drop the sequence."
        )
        raise ValueError(msg)
    room = min(cap, budget)
    if len(lengths) > MANY:
        step = windows(lengths, ranks, room, budget)
    else:
        step = _best([*_cuts(lengths, ranks, room, budget)], lengths, room, budget)
    return _placed(step, ranks)


def plan_mixed(lengths: Sequence[int], ranks: int, cap: int, budget: int | None = None) -> Plan:
    """Plan a micro-batch whose sequences are given.

    Args:
        lengths: Tokens of each sequence, at least one sequence.
        ranks: W, the number of data parallel ranks, a power of two.
        cap: Tokens of one sequence that a rank can hold (`max_seqlen_per_dp_cp_rank`).
        budget: Tokens of the micro-batch that a rank can hold, if that is limited. Where no plan is found
            that holds it, the plan is `plan_uniform`'s.

    Raises:
        ValueError: All ranks together cannot hold the longest sequence, there is none, or W is no power of
            two.

    """
    _check(lengths, ranks, cap)
    most = max(1, sum(lengths)) if budget is None else budget
    if most >= 1 and max(lengths) <= ranks * most:
        room = min(cap, most)
        whole = [step for step in _cuts(lengths, ranks, room, most) if len(step) == 1]
        if whole:
            ((_, plan),) = _placed(_best(whole, lengths, room, most), ranks)
            return plan
    return plan_uniform(lengths, ranks, cap, budget)


def takes(step: Step) -> int:
    """Return how many picoseconds a step takes by the model."""
    return sum(max(member.load for member in members) for members in step)


def _check(lengths: Sequence[int], ranks: int, cap: int) -> None:
    if not lengths:
        msg = "a micro-batch without sequences cannot be split"
        raise ValueError(msg)
    if ranks & (ranks - 1):
        msg = (
            f"OVERLAY_DCP=mixed takes a power of two of data parallel ranks, not W={ranks}: set it to uniform"
        )
        raise ValueError(msg)
    check_longest(lengths, ranks, cap)


def _best(steps: list[Step], lengths: Sequence[int], room: int, budget: int) -> Step:
    """Return the step that takes least after the most promising have been improved."""
    steps = sorted(steps, key=takes)
    for step in steps[:IMPROVED]:
        improve(step, lengths, room, budget, TRIES)
    return min(steps, key=takes)


def _cuts(lengths: Sequence[int], ranks: int, room: int, budget: int) -> Iterator[Step]:
    """Yield the ways to cut a step that are tried."""
    for size in allowed_sizes(ranks):
        yield windows(lengths, ranks, room, budget, size)
        step = even(lengths, ranks, size, budget) if size * room >= max(lengths) else None
        if step is not None:
            yield step
    yield from starts(lengths, ranks, room, budget)


def _placed(step: Step, ranks: int) -> list[MicroBatch]:
    """Give subgroups their ranks: those with most to do where there was least to do before.

    That makes no micro-batch shorter. It is for ranks that do not wait for each other between micro-batches.
    """
    busy = [0] * ranks
    found = []
    for members in step:
        indices = sorted([index for member in members for index in member.indices])
        number = {index: place for place, index in enumerate(indices)}
        taken = [False] * ranks
        plan = []
        # Falling sizes: whoever takes more ranks is served before, so what is free is whole blocks of a size.
        for size, alike in groupby(members, key=lambda member: member.size):
            blocks = range(0, ranks, size)
            until = busy if size == 1 else [max(busy[start : start + size]) for start in blocks]
            free = [block for block, start in enumerate(blocks) if not taken[start]]
            free.sort(key=until.__getitem__)
            for block, member in zip(free, sorted(alike, key=lambda one: -one.load), strict=False):
                start = block * size
                plan.append((start, size, tuple(sorted([number[index] for index in member.indices]))))
                taken[start : start + size] = [True] * size
                busy[start : start + size] = [until[block] + member.load] * size
        found.append((indices, tuple(sorted(plan))))
    return found
