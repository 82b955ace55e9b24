"""What takes the place of the Karmarkar-Karp of slime and of its fork."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any


def fast_or(original: Callable[..., Any], effect: Any) -> Callable[..., Any]:
    """Build `karmarkar_karp`: what is no plain number, or not to be divided, is left to the original."""
    from overlay.patches._partition import is_exact
    from overlay.patches._partition import karmarkar_karp as fast

    def karmarkar_karp(seqlen_list: Sequence[Any], k_partitions: int, equal_size: bool) -> list[list[int]]:
        if len(seqlen_list) == 0 or k_partitions < 1 or not is_exact(seqlen_list):
            return original(seqlen_list, k_partitions, equal_size)  # type: ignore[no-any-return]
        effect.changed += 1
        return fast(seqlen_list, k_partitions, equal_size=equal_size)

    return karmarkar_karp
