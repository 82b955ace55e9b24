"""Micro-batches of a step whose number an upstream rounds up by cutting the largest in two."""

from __future__ import annotations

from overlay import log
from overlay.patches._partition.balance import holds
from overlay.patches._partition.capped import capped_partitions, fewest_parts
from overlay.patches._partition.counted import count_split

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any


def aligned(
    packed: list[list[int]],
    lengths: Sequence[int],
    cap: int,
    count_costs: Callable[[], Sequence[float]],
    align: int,
    expand: Callable[[list[list[int]], int, Sequence[int]], None],
    effect: Any,
) -> list[list[int]]:
    """Return an upstream's parts if they will hold the cap, else parts that do, already aligned.

    There are then as few as hold it, but not fewer than the upstream has: here they can be balanced. Where
    these, rounded up, are more than the samples, the upstream's parts stay: it would stop the job.

    Args:
        packed: The parts of an upstream, lists of indices.
        lengths: Tokens of each sample.
        cap: The most tokens in a part.
        count_costs: Returns operations of each sample, which are balanced.
        align: The number of parts becomes a multiple of this.
        expand: The upstream's function that cuts the largest parts in two, in place, until there are so many.
        effect: As from `split_effect`.

    """
    cut = [list(part) for part in packed]
    expand(cut, -(-len(cut) // align) * align, lengths)
    effect.calls += 1
    if holds(cut, lengths, cap) and all(cut):
        return packed
    # A count of operations is a whole number; as a float its sums would depend on their order.
    costs = [int(count) for count in count_costs()]
    parts = fewest_parts(lengths, cap, at_least=len(packed), costs=costs)
    parts = -(-parts // align) * align
    if parts > len(lengths):
        log.warning(
            f"a micro-batch will exceed its budget of {cap} tokens, as it does without the patch: the step "
            f"has {len(lengths)} samples, too few for {parts} micro-batches"
        )
        return packed
    count_split(effect, cut, lengths, cap)
    return capped_partitions(lengths, parts, cap, costs=costs)
