"""Partitions that hold a cap: no part over it, but for a sample that is over it all by itself."""

from __future__ import annotations

from overlay.patches._partition.balance import holds, split_largest, total
from overlay.patches._partition.differencing import karmarkar_karp
from overlay.patches._partition.level import level
from overlay.patches._partition.packing import (
    best_fit_decreasing,
    first_fit,
    first_fit_decreasing,
    least_parts,
    worst_fit,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Number = int | float


def fewest_parts(
    lengths: Sequence[int], cap: int, *, at_least: int = 1, costs: Sequence[Number] | None = None
) -> int:
    """Return the least number of parts, `at_least` or more, in which `capped_partitions` succeeds.

    It then succeeds with every greater number too, up to that of the samples. Unless `at_least` is more, the
    result is no more than first fit needs, in the order of the samples or the longest first, nor than the
    least number with which Karmarkar-Karp on the costs holds the cap by itself.

    Args:
        lengths: Tokens of each sample.
        cap: The most tokens in a part, at least 1.
        at_least: The least number to return.
        costs: What Karmarkar-Karp balances; without it, the lengths.

    Raises:
        ValueError: A negative length, a cap below 1, or not one cost for each sample.

    """
    costs = _checked(lengths, cap, costs)
    least, packed = max(least_parts(lengths, cap), 1), len(lengths)
    # Each needs the fewest parts for some samples, the last one rarely.
    for pack in (first_fit, best_fit_decreasing, first_fit_decreasing):
        packed = min(packed, len(pack(lengths, cap)))
        if packed <= max(least, at_least):
            return max(packed, at_least)
    for parts in range(least, packed):
        if holds(karmarkar_karp(costs, parts, equal_size=False), lengths, cap):
            return max(parts, at_least)
    return packed


def capped_partitions(
    lengths: Sequence[int],
    parts: int,
    cap: int,
    *,
    costs: Sequence[Number] | None = None,
    refused: list[list[int]] | None = None,
) -> list[list[int]]:
    """Divide the samples into parts that hold the cap, balanced by cost as far as that allows.

    Where Karmarkar-Karp on the costs holds the cap, that is the result. Otherwise no part costs more than the
    costliest, nor less than the cheapest, of first fit's parts split in half, costliest first, until there
    are enough.

    Args:
        lengths: Tokens of each sample.
        parts: How many parts: `fewest_parts` or more, and no more than there are samples.
        cap: The most tokens in a part, at least 1. A sample over it is alone.
        costs: What to balance; without it, the lengths.
        refused: Gets the parts of Karmarkar-Karp if they do not hold the cap.

    Returns:
        `parts` lists of indices, each ascending and none empty, in descending order of (cost, number of
        samples, first sample). Every index is in one of them.

    Raises:
        ValueError: No way was found, or what `fewest_parts` refuses.

    """
    costs = _checked(lengths, cap, costs)
    if not 1 <= parts <= len(lengths):
        raise ValueError(
            f"{len(lengths)} samples cannot fill {parts} parts: ask for at least 1 part and at most "
            "as many as there are samples"
        )
    balanced = karmarkar_karp(costs, parts, equal_size=False)
    if holds(balanced, lengths, cap):
        return [sorted(part) for part in balanced]
    if refused is not None:
        refused += balanced
    for start in _starts(lengths, parts, cap, costs):
        found = split_largest(start, parts, costs)
        level(found, lengths, cap, costs)
        if costs is not lengths and (other := worst_fit(lengths, parts, cap, costs)) is not None:
            found = _better(found, other, lengths, cap, costs)
        found = [sorted(part) for part in found]
        return sorted(found, key=lambda part: (total(part, costs), len(part), part[0]), reverse=True)
    raise ValueError(
        f"no way was found to put {len(lengths)} samples of {sum(lengths)} tokens into {parts} parts of at "
        f"most {cap} tokens: take {fewest_parts(lengths, cap, costs=costs)} parts, or a higher limit"
    )


def _starts(
    lengths: Sequence[int], parts: int, cap: int, costs: Sequence[Number]
) -> Iterator[list[list[int]]]:
    """Yield partitions that hold the cap in `parts` parts or fewer, the best to start from first."""
    for pack in (first_fit, best_fit_decreasing, first_fit_decreasing):
        packed = pack(lengths, cap)
        if len(packed) <= parts:
            yield packed
    for fewer in range(parts - 1, max(least_parts(lengths, cap), 1) - 1, -1):
        balanced = karmarkar_karp(costs, fewer, equal_size=False)
        if holds(balanced, lengths, cap):
            yield balanced


def _better(
    found: list[list[int]],
    other: list[list[int]],
    lengths: Sequence[int],
    cap: int,
    costs: Sequence[Number],
) -> list[list[int]]:
    """Return the other partitions, levelled, if neither their greatest cost nor their spread is greater."""
    level(other, lengths, cap, costs)
    totals, others = ([total(part, costs) for part in parts] for parts in (found, other))
    no_worse = max(others) <= max(totals) and max(others) - min(others) <= max(totals) - min(totals)
    return other if no_worse else found


def _checked(lengths: Sequence[int], cap: int, costs: Sequence[Number] | None) -> Sequence[Number]:
    """Return the costs, which are the lengths if there are none."""
    if cap < 1:
        raise ValueError(f"a limit of {cap} tokens holds nothing: it must be at least 1")
    if min(lengths, default=0) < 0:
        raise ValueError(f"a sample of {min(lengths)} tokens: a length cannot be negative")
    if costs is None:
        return lengths
    if len(costs) != len(lengths):
        raise ValueError(f"{len(costs)} costs for {len(lengths)} samples: there must be one for each")
    return costs
