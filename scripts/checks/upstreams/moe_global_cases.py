"""What `global_aux_loss` does on several ranks, of which each has a part of all tokens that it is over."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from overlay.patches.megatron.moe_aux_scale.cases import GLOBAL, LAYOUTS, STEPS, TOKENS, knows_padding, step

if TYPE_CHECKING:
    from collections.abc import Callable


def cases(world: int) -> list[tuple[str, dict[str, int], Callable[[], dict[str, float]]]]:
    """Return a case for each layout, way to divide the gradient, and step."""
    return [
        (
            f"{layout}, {'per token' if per_token else 'per batch'}{name}",
            sizes,
            functools.partial(
                step,
                kind,
                sizes.get("tensor", 1),
                sizes.get("context", 1),
                per_token=per_token,
                lengths=lengths,
            ),
        )
        for kind in GLOBAL
        for layout, sizes in LAYOUTS[world].items()
        for name, lengths in STEPS.items()
        for per_token in (True, False)
        if min(lengths) == TOKENS or (per_token and knows_padding())
    ]
