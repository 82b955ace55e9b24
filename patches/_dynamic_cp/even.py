"""Micro-batches of subgroups that all have one size, with parts of about equal cost."""

from __future__ import annotations

from overlay.patches._dynamic_cp.cost import of_sequence
from overlay.patches._dynamic_cp.windows import Subgroup, subgroup
from overlay.patches._partition import capped_partitions, fewest_parts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def even(lengths: Sequence[int], ranks: int, size: int, budget: int) -> list[list[Subgroup]] | None:
    """Cut a mini-batch into micro-batches of W / C subgroups; `None` if there are too few sequences.

    Args:
        lengths: Tokens of each sequence, none more than `size` ranks hold.
        ranks: W, the number of data parallel ranks.
        size: C, the ranks of each subgroup; it divides W.
        budget: Tokens of a micro-batch that a rank holds.

    """
    costs = [of_sequence(length, size) for length in lengths]
    beside = ranks // size
    count = -(-fewest_parts(lengths, size * budget, costs=costs) // beside) * beside
    if count > len(lengths):
        return None
    # From the costliest to the cheapest, so neighbours are alike.
    parts = capped_partitions(lengths, count, size * budget, costs=costs)
    members = [subgroup(size, part, lengths) for part in parts]
    return [members[first : first + beside] for first in range(0, count, beside)]
