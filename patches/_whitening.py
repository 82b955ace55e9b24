"""Whitening by sums over all ranks, in float64: what slime and its fork are to do with advantages."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def whitened(
    values: Any,
    mask: Any,
    all_reduce: Callable[[Any], None],
    place: tuple[int, int],
    effect: Any,
    *,
    shift_mean: bool,
    epsilon: float,
) -> Any:
    """Return the values less their mean, over their standard deviation, on all ranks alike.

    Args:
        values: Of this rank, [tokens], possibly of none.
        mask: Of the same shape, 1 for what counts.
        all_reduce: Adds a tensor up over all ranks that have a part of the values, in place. Called twice.
        place: This rank among those that share a sequence, and how many these are. The upstream takes the
            mean over ranks of one such place.
        effect: Where it is counted how far the upstream's mean and deviation are off.
        shift_mean: Whether the result has the mean 0, or that of the values.
        epsilon: What is added to the variance.

    Raises:
        ValueError: No value counts, on any rank.

    """
    import torch

    exact, counts = values.double(), mask.double()
    # A row for each place: their sum is what is asked for, and each of them is what the upstream takes.
    rank, ranks = place
    sums = exact.new_zeros(ranks, 2)
    sums[rank] = torch.stack([counts.sum(), (exact * counts).sum()])
    all_reduce(sums)
    rows = sums.tolist()
    count, total = (sum(column) for column in zip(*rows, strict=True))
    if count == 0:
        msg = "the loss masks of all ranks are empty: there is no advantage to normalise"
        raise ValueError(msg)
    mean = total / count
    # Squares of the differences, and not of the values: of those the variance is lost where it is small
    # against them, in float64 as well. So there are two sums, one after the other.
    away = exact - mean
    squares = exact.new_zeros(ranks)
    squares[rank] = (away**2 * counts).sum()
    all_reduce(squares)
    by_place = squares.tolist()
    variance = sum(by_place) / count
    if count > 1:
        variance *= count / (count - 1)
    _count(effect, rows, by_place, mean, variance)
    result = away / (variance + epsilon) ** 0.5
    return (result if shift_mean else result + mean).to(values.dtype)


def _count(effect: Any, rows: list[list[float]], squares: list[float], mean: float, variance: float) -> None:
    """Count by how much the mean and the deviation of each place differ from those of all.

    Args:
        effect: With the figures `calls`, `changed`, `mean_off` and `deviation_off`.
        rows: For each place, how many values count, and their sum.
        squares: For each place, the sum of squared differences from the mean of all.
        mean: Of all.
        variance: Of all.

    """
    effect.calls += 1
    if len(rows) == 1 or variance <= 0:
        return
    deviation = variance**0.5
    mean_off = deviation_off = 0.0
    for (count, total), own_squares in zip(rows, squares, strict=True):
        if count < 2:  # noqa: PLR2004 -- one value has no deviation
            continue
        away = total / count - mean
        own = max(own_squares - count * away**2, 0.0) / (count - 1)
        mean_off = max(mean_off, abs(away) / deviation)
        deviation_off = max(deviation_off, abs(own**0.5 / deviation - 1))
    # Far above what the order of a sum in float64 changes.
    effect.changed += max(mean_off, deviation_off) > 1e-6  # noqa: PLR2004
    effect.mean_off = max(effect.mean_off, mean_off)
    effect.deviation_off = max(effect.deviation_off, deviation_off)
