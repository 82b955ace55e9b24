"""Which outputs, losses and gradients of slime, or of its fork, are not those of float64."""

from __future__ import annotations

from typing import Any

import overlay
from overlay.compat.slime_on_cpu import losses

#: Tokens and response tokens of each sample.
SHAPE = ((9, 4), (6, 3), (12, 11))

#: Ways in which a loss is computed.
_WAYS: tuple[dict[str, Any], ...] = (
    {},
    {"entropy_coef": 0.1},
    {"entropy_coef": 0.1, "log_probs_chunk_size": 3},
)
_TOLERANCE = 1e-5
#: Of a gradient that Megatron's cross entropy has rounded to bfloat16.
_ROUNDED = 2**-7


def wrong_outputs(seed: int) -> str:
    """Return which log-probabilities, entropies or gradients of them are not those of float64."""
    for changed in _WAYS:
        off = _off(losses.outputs(SHAPE, seed=seed, **changed)["errors"])
        if off:
            return f"outputs with {changed}: {off}"
    return ""


def wrong_losses(seed: int) -> str:
    """Return which loss is not that of float64, nor what this very upstream makes of it without patches.

    What a loss is made of is upstream's, and another formula is no fault of a patch. Nothing is patched
    any more afterwards.
    """
    found = {str(way): _off(losses.loss(SHAPE, seed=seed, **way)["errors"]) for way in _WAYS}
    ours = {str(way): losses.step(SHAPE, seed=seed, **way) for way in _WAYS if found[str(way)]}
    overlay.disable()
    for way in _WAYS:
        if str(way) not in ours:
            continue
        (loss, gradient), (other, rounded) = ours[str(way)], losses.step(SHAPE, seed=seed, **way)
        near = losses.error(loss, other.double()) < _TOLERANCE
        if not near or not losses.error(gradient, rounded.double()) < _ROUNDED:
            return f"loss with {way}: {found[str(way)]}"
    return ""


def _off(errors: dict[str, float]) -> dict[str, float]:
    # A NaN is not below anything.
    return {key: value for key, value in errors.items() if not value < _TOLERANCE}
