"""What takes the place of the upstreams' Karmarkar-Karp."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any


def fast_or(
    original: Callable[..., Any], effect: Any, plain: Callable[[Any], Any] = lambda values: values
) -> Callable[..., Any]:
    """Build `karmarkar_karp`: what `plain` does not make plain numbers of is left to the original."""
    from overlay.patches._partition import is_exact
    from overlay.patches._partition import karmarkar_karp as fast

    def karmarkar_karp(seqlen_list: Sequence[Any], k_partitions: int, equal_size: bool) -> list[list[int]]:
        values = plain(seqlen_list)
        if len(values) == 0 or k_partitions < 1 or not is_exact(values):
            return original(seqlen_list, k_partitions, equal_size)  # type: ignore[no-any-return]
        effect.changed += 1
        return fast(values, k_partitions, equal_size=equal_size)

    return karmarkar_karp
