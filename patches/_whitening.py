"""Whitening by sums over all ranks, in float64: what slime and its fork are to do with advantages.

Under context parallelism a rank has some of the tokens of each sample, and the upstreams take statistics over
the ranks that all have the same part. A rank without any token never gets there.
"""

from __future__ import annotations

from overlay.effect import Figure, effect
from overlay.patches._rebound import rebound

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any


def effect_of(place: str) -> Any:
    """Return what a patch of an upstream counts; `place` is as for `effect`."""
    says = "of them, those in which this rank had no token, so that the others would have waited for it"
    figure = Figure(name="empty", says=says)
    return effect(place, "normalisation", figure, did="took over all ranks, in float64,", always=True)


def over_all(
    original: Callable[..., Any],
    module: ModuleType,
    all_reduce: Callable[[Any], None],
    counted: Any,
) -> Callable[..., Any]:
    """Return what runs an upstream's function so that its own whitening asks all ranks.

    It keeps its name in `module`: a user's hook that whitens over another group gets the upstream's. Where
    other ranks have normalised and this one has not, as it has no token, it enters the collective behind the
    function. `all_reduce` is as for `whitened`.
    """

    def run(call: Callable[[Any], Any], normalised: Callable[[], list[Any] | None]) -> Any:
        """Return what `call` makes of the function.

        `normalised` returns the advantages that other ranks have whitened meanwhile, `None` if they have not.
        """
        import torch

        entered = False

        def distributed_masked_whiten(
            values: Any, mask: Any, process_group: Any = None, shift_mean: bool = True, epsilon: float = 1e-8
        ) -> Any:
            """Return the values whitened. The group is ignored: it is the one without context parallelism."""
            nonlocal entered
            entered = True
            counted.changed += 1
            return whitened(values, mask, all_reduce, shift_mean=shift_mean, epsilon=epsilon)

        result = call(rebound(original, module, distributed_masked_whiten=distributed_masked_whiten))
        if (advantages := normalised()) is not None and not entered:
            counted.empty += 1
            none = torch.cat(advantages)
            distributed_masked_whiten(none, torch.ones_like(none))
        return result

    return run


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
