"""Micro-batches of subgroups that all have one size, with parts of about equal cost."""

from __future__ import annotations

from overlay.patches._dynamic_cp.cost import sequence_costs
from overlay.patches._dynamic_cp.windows import Subgroup, subgroup
from overlay.patches._partition.packing import worst_fit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

#: How many numbers of micro-batches are tried, from the least that hold all tokens.
NUMBERS = 3


def equal_parts(lengths: Sequence[int], ranks: int, size: int, budget: int) -> list[list[Subgroup]] | None:
    """Cut a mini-batch into micro-batches of W / C subgroups; `None` if no way was found.

    Args:
        lengths: Tokens of each sequence, none more than `size` ranks hold.
        ranks: W, the number of data parallel ranks.
        size: C, the ranks of each subgroup; it divides W.
        budget: Tokens of a micro-batch that a rank holds.

    """
    costs = sequence_costs(lengths, size)
    beside = ranks // size
    fewest = max(1, -(-sum(lengths) // (beside * size * budget)))
    for number in range(fewest, fewest + NUMBERS):
        if number * beside > len(lengths):
            return None
        parts = worst_fit(lengths, number * beside, size * budget, costs)
        if parts is not None:
            members = [subgroup(size, part, lengths) for part in parts]
            # From the costliest to the cheapest, so neighbours are alike.
            members.sort(key=lambda member: -member.load)
            return [members[first : first + beside] for first in range(0, len(members), beside)]
    return None
