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


def effect_of(place: str) -> Any:
    """Return what a patch of an upstream counts; `place` is as for `effect`."""
    says = "of them, those in which this rank had no token, so that the others would have waited for it"
    return effect(place, "normalisation", Figure(name="empty", says=says), did="took over all ranks")


def over_all(
    all_reduce: Callable[[Any], None], sharing: Callable[[], int], counted: Any
) -> Callable[..., Any]:
    """Return what takes the place of an upstream's whitening: `all_reduce` is as for `whitened`.

    `sharing` returns how many ranks share a sequence: with one the upstream itself asks all ranks.
    """

    def distributed_masked_whiten(
        values: Any, mask: Any, process_group: Any = None, shift_mean: bool = True, epsilon: float = 1e-8
    ) -> Any:
        """Return the values whitened. The group is ignored: it is the one without context parallelism."""
        _entered.set(True)
        counted.calls += 1
        counted.changed += sharing() > 1
        return whitened(values, mask, all_reduce, shift_mean=shift_mean, epsilon=epsilon)

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
    values: Any, mask: Any, all_reduce: Callable[[Any], None], *, shift_mean: bool, epsilon: float
) -> Any:
    """Return the values less their mean, over their standard deviation, on all ranks alike.

    `values` are this rank's [tokens], possibly none, and `mask` is 1 for what counts. `all_reduce` adds a
    tensor up, in place, over all ranks that have a part of the values, and is called twice. Raises
    `ValueError` if no value counts, on any rank.
    """
    import torch

    exact, counts = values.double(), mask.double()
    sums = torch.stack([counts.sum(), (exact * counts).sum()])
    all_reduce(sums)
    count, total = sums.tolist()
    if count == 0:
        raise ValueError("the loss masks of all ranks are empty: there is no advantage to normalise")
    mean = total / count
    # Squares of the differences, and not of the values: of those the variance is lost where it is small
    # against them, in float64 as well. So there are two sums, one after the other.
    away = exact - mean
    squares = (away**2 * counts).sum()[None]
    all_reduce(squares)
    variance = squares.item() / count
    if count > 1:
        variance *= count / (count - 1)
    result = away / (variance + epsilon) ** 0.5
    return (result if shift_mean else result + mean).to(values.dtype)
