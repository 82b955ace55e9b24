"""What patches count of a split that an upstream would have had."""

from __future__ import annotations

from overlay.effect import Figure, effect
from overlay.patches._partition.balance import overfull

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def split_effect(place: str, of: str, upstream: str, did: str = "changed") -> Any:
    """Return what a patch of an upstream counts, for `count_split`; the rest is as for `effect`."""
    return effect(
        place,
        of,
        Figure(name="over", says=f"micro-batches over the budget that {upstream}'s own split has"),
        Figure(name="fullest", says="tokens of the fullest of them, over the budget", combine="max"),
        did=did,
        then="without it {over} micro-batches over the budget, the fullest {fullest} times",
    )


def count_split(counts: Any, upstream: Sequence[Sequence[int]], lengths: Sequence[int], cap: int) -> None:
    """Count parts of an upstream (lists of indices) that were not kept, by the tokens of each sample."""
    over, fullest = overfull(upstream, lengths, cap)
    counts.changed += 1
    counts.over += over
    if over:
        counts.fullest = max(counts.fullest, fullest)
