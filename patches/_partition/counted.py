"""What patches count of a split that an upstream would have had."""

from __future__ import annotations

from overlay.patches._partition.balance import overfull

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def count_split(effect: Any, upstream: Sequence[Sequence[int]], lengths: Sequence[int], cap: int) -> None:
    """Count a split that was not kept: the parts over the cap, and how full the fullest is.

    Args:
        effect: With the figures `changed`, `over` and `fullest`.
        upstream: The parts that the upstream would have taken, lists of indices.
        lengths: Tokens of each sample.
        cap: The most tokens in a part.

    """
    over, fullest = overfull(upstream, lengths, cap)
    effect.changed += 1
    effect.over += over
    if over:
        effect.fullest = max(effect.fullest, fullest)
