"""Each layer is built with the type that the list has at its place, and the list is as it was afterwards."""

import copy
import random
from typing import Any

from overlay.compat.contracts import megatron_parts as parts

TYPES = ("p2p", "all_gather", "a2a", "a2a+p2p")
LAYERS = 7


@parts.on_one_rank
def wrong(seed: str) -> str:
    """Return which layers are built with another type, empty if none is."""
    draw = random.Random(seed)
    for _ in range(4):
        types = [draw.choice(TYPES) for _ in range(LAYERS)]
        if (found := _built(draw, types, 2)) != types:
            return f"of the types {types} the layers have {found}"
        if _built(draw, "a2a", 2) != ["a2a"] * LAYERS or _built(draw, None, 2) != [None] * LAYERS:
            return "one type for all layers is not what each of them has"
        if _built(draw, types, 1) != [None] * LAYERS:
            return "without context parallelism a layer has a type"
    return ""


def _built(draw: random.Random, types: Any, ranks: int) -> list[Any]:
    """Return the types that layers ask for, which are built by the types of the configuration."""
    import torch
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules

    given, seen = list[Any](), list[Any]()

    class Attention(torch.nn.Module):
        def __init__(self, config: Any, cp_comm_type: Any = None, **_options: Any) -> None:
            super().__init__()
            given.append(cp_comm_type)
            seen.append(copy.deepcopy(config).cp_comm_type)

    class Own(TransformerLayer):  # type: ignore[misc, unused-ignore]
        """A layer that somebody has derived."""

    spec = TransformerLayerSubmodules(self_attention=ModuleSpec(module=Attention))
    config = parts.small_transformer(num_layers=LAYERS, context_parallel_size=ranks, cp_comm_type=types)
    for number in range(1, LAYERS + 1):
        try:
            layer = draw.choice((TransformerLayer, Own))(config, spec, layer_number=number)
        except IndexError:
            return [*given, "IndexError"]
        seen.append(layer.config.cp_comm_type)
    if any(type(one) is not type(types) or one != types for one in seen):
        return ["another list afterwards, or in a copy of the configuration"]
    return given


CONTRACT = parts.contract("megatron.cp-comm-type-by-layer", wrong)
