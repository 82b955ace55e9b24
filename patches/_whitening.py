"""Whitening by sums over all ranks, in float64: what slime and its fork are to do with advantages.

Under context parallelism a rank has some of the tokens of each sample, and the upstreams take statistics over
the ranks that all have the same part. A rank without any token never gets there.
"""

from __future__ import annotations

from contextvars import ContextVar

from overlay.effect import Figure, effect

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

#: While advantages are computed: whether this rank has entered the collective.
_entered: ContextVar[bool] = ContextVar("overlay_whitened", default=False)


def effect_of(place: str, upstream: str) -> Any:
    """Return what a patch of an upstream counts, and `whitened` adds to; `place` is as for `effect`."""
    mean = f"distance of a mean that {upstream} takes from that of all tokens, in deviations"
    deviation = f"how far a deviation that {upstream} takes is from that of all tokens, as a part of it"
    empty = "of them, those in which this rank had no token, so that the others would have waited for it"
    return effect(
        place,
        "normalisation",
        Figure(name="mean_off", says=mean, combine="max"),
        Figure(name="deviation_off", says=deviation, combine="max"),
        Figure(name="empty", says=empty),
        then="without it a mean up to {mean_off} deviations off, a deviation up to {deviation_off} of itself",
    )


def over_all(
    all_reduce: Callable[[Any], None], place: Callable[[], tuple[int, int]], counted: Any
) -> Callable[..., Any]:
    """Return what takes the place of an upstream's whitening; `all_reduce` and `place` as for `whitened`."""

    def distributed_masked_whiten(
        values: Any, mask: Any, process_group: Any = None, shift_mean: bool = True, epsilon: float = 1e-8
    ) -> Any:
        """Return the values whitened. The group is ignored: it is the one without context parallelism."""
        _entered.set(True)
        return whitened(values, mask, all_reduce, place(), counted, shift_mean=shift_mean, epsilon=epsilon)

    return distributed_masked_whiten


def entered(
    run: Callable[[], Any], normalised: Callable[[], list[Any] | None], module: ModuleType, counted: Any
) -> Any:
    """Return what `run` returns; a rank that has not whitened anything in it enters the collective then.

    The upstream has no other collective behind it. `normalised` returns the advantages that other ranks have
    whitened meanwhile, `None` if they have not; `module` has the whitening of `over_all`.
    """
    import torch

    token = _entered.set(False)
    try:
        result = run()
        if (advantages := normalised()) is not None and not _entered.get():
            counted.empty += 1
            none = torch.cat(advantages)
            module.distributed_masked_whiten(none, torch.ones_like(none))
        return result
    finally:
        _entered.reset(token)


def whitened(
    values: Any,
    mask: Any,
    all_reduce: Callable[[Any], None],
    place: tuple[int, int],
    counted: Any,
    *,
    shift_mean: bool,
    epsilon: float,
) -> Any:
    """Return the values less their mean, over their standard deviation, on all ranks alike.

    `values` are this rank's [tokens], possibly none, and `mask` is 1 for what counts. `all_reduce` adds a
    tensor up, in place, over all ranks that have a part of the values, and is called twice. `place` is this
    rank among those that share a sequence, and their number: the upstream takes the mean over ranks of one
    such place. Raises `ValueError` if no value counts, on any rank.
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
        raise ValueError("the loss masks of all ranks are empty: there is no advantage to normalise")
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
    _count(counted, rows, by_place, mean, variance)
    result = away / (variance + epsilon) ** 0.5
    return (result if shift_mean else result + mean).to(values.dtype)


def _count(counts: Any, rows: list[list[float]], squares: list[float], mean: float, variance: float) -> None:
    """Count by how much the mean and the deviation of each place differ from those of all.

    `rows` has for each place how many values count and their sum, `squares` their sum of squared differences
    from `mean`; that and `variance` are of all.
    """
    counts.calls += 1
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
    counts.changed += max(mean_off, deviation_off) > 1e-6  # noqa: PLR2004
    counts.mean_off = max(counts.mean_off, mean_off)
    counts.deviation_off = max(counts.deviation_off, deviation_off)
