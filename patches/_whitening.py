"""Whitening by sums over all ranks, in float64: what slime and its fork are to do with advantages."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def whitened(
    values: Any, mask: Any, all_reduce: Callable[[Any], None], *, shift_mean: bool, epsilon: float
) -> Any:
    """Return the values less their mean, over their standard deviation, on all ranks alike.

    Args:
        values: Of this rank, [tokens], possibly of none.
        mask: Of the same shape, 1 for what counts.
        all_reduce: Adds a tensor up over all ranks that have a part of the values, in place. Called twice.
        shift_mean: Whether the result has the mean 0, or that of the values.
        epsilon: What is added to the variance.

    Raises:
        ValueError: No value counts, on any rank.

    """
    import torch

    exact, counts = values.double(), mask.double()
    sums = torch.stack([counts.sum(), (exact * counts).sum()])
    all_reduce(sums)
    count, total = sums.tolist()
    if count == 0:
        msg = "the loss masks of all ranks are empty: there is no advantage to normalise"
        raise ValueError(msg)
    mean = total / count
    # Squares of the differences, and not of the values: of those the variance is lost where it is small
    # against them, in float64 as well. So there are two sums, one after the other.
    away = exact - mean
    squares = (away**2 * counts).sum()
    all_reduce(squares)
    variance = squares.item() / count
    if count > 1:
        variance *= count / (count - 1)
    result = away / (variance + epsilon) ** 0.5
    return (result if shift_mean else result + mean).to(values.dtype)
