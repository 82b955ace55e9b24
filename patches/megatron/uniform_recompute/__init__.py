"""`megatron.uniform-recompute`: the layers need be no multiple of those that are recomputed together."""

from typing import Any

from overlay.compat.projects import MEGATRON
from overlay.effect import effect
from overlay.patch import Patch, around, one_target, replaced, variant

_FORWARD = "megatron.core.transformer.transformer_block:TransformerBlock._checkpointed_forward"
EFFECT = effect(
    __name__, "forward of a block", did="cut into chunks of which the last has fewer layers", always=True
)


class _UpTo(int):
    """A number of layers which, added to a place, goes no further than the last of all."""

    last: int

    def __radd__(self, place: int) -> int:
        return min(place + int(self), self.last)


@around
def checkpointed_forward(original: Any, self: Any, *args: Any, **options: Any) -> Any:
    """Cut the last chunk at the last layer. All chunks are cut on return: the backward reads nothing."""
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


PATCH = Patch(
    id="megatron.uniform-recompute",
    summary="Uniform recomputation allows a smaller last chunk",
    why="With recompute_method=uniform the first forward dies with an IndexError, if the layers of a "
    "pipeline stage are no multiple of recompute_num_layers: Megatron asks for layers behind the last one.",
    changes=("crashes",),
    met="recompute_granularity=full, recompute_method=uniform and a recompute_num_layers that does not "
    "divide the layers of a pipeline stage.",
    evidence="megatron-core 0.17 ends the last chunk at the last layer (NVIDIA/Megatron-LM#3562).",
    upstream=("NVIDIA/Megatron-LM#3562",),
    targets=one_target(
        MEGATRON,
        variant("0.12", replaced(_FORWARD, checkpointed_forward)),
        tells=("megatron.core.recompute:checkpointed_forward",),
    ),
)
