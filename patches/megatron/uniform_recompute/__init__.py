"""`megatron.uniform-recompute`: the layers need be no multiple of those that are recomputed together.

The forward under recomputation is wrapped: while it runs, adding the number of layers of a chunk to a place
goes no further than the last layer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from overlay.compat.projects import MEGATRON
from overlay.effect import effect
from overlay.patch import Patch, one_target, replaced, variant

_FORWARD = "megatron.core.transformer.transformer_block:TransformerBlock._checkpointed_forward"
EFFECT = effect(
    __name__, "forward of a block", did="cut into chunks of which the last has fewer layers", always=True
)


class _UpTo(int):
    """A number of layers which, added to a place, goes no further than the last of all."""

    last: int

    def __radd__(self, place: int) -> int:
        return min(place + int(self), self.last)


def make_forward(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build `_checkpointed_forward`, which has cut all chunks when it returns: the backward reads nothing."""

    def _checkpointed_forward(self: Any, *args: Any, **options: Any) -> Any:
        config, layers = self.config, self.num_layers_per_pipeline_rank
        count = config.recompute_num_layers
        if config.recompute_method != "uniform" or not count or layers % count == 0:
            return original(self, *args, **options)
        EFFECT.changed += 1
        config.recompute_num_layers = _UpTo(count)
        config.recompute_num_layers.last = layers
        try:
            return original(self, *args, **options)
        finally:
            config.recompute_num_layers = count

    return functools.wraps(original)(_checkpointed_forward)


PATCH = Patch(
    id="megatron.uniform-recompute",
    summary="Uniform recomputation takes a last chunk of fewer layers",
    why=(
        "With recompute_method=uniform Megatron recomputes recompute_num_layers layers at a time. If the "
        "layers of a pipeline stage are no multiple of that, it asks for layers behind the last one, and "
        "the first forward dies with an IndexError. With the patch the last chunk has the layers that are "
        "left, as from 0.17 on."
    ),
    changes=("crashes",),
    met=(
        "recompute_granularity=full, recompute_method=uniform and a recompute_num_layers by which the layers "
        "of a pipeline stage cannot be divided."
    ),
    evidence=(
        "megatron-core 0.17 ends the last chunk at the last layer (NVIDIA/Megatron-LM#3562). Output and "
        "gradients are compared with a run without recomputation."
    ),
    upstream=("NVIDIA/Megatron-LM#3562",),
    targets=one_target(
        MEGATRON,
        variant(
            "0.12",
            replaced(_FORWARD, make_forward),
        ),
        tells=("megatron.core.recompute:checkpointed_forward",),
    ),
)
