"""Each layer is built with the type that the list has at its place, and the list is as it was afterwards."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

from overlay.patch import Contract
from overlay.testing import with_patches

TYPES = ("p2p", "all_gather", "a2a", "a2a+p2p")
LAYERS = 7


def wrong(seed: str) -> str:
    """Return which layers are built with another type, empty if none is."""
    from overlay.compat.megatron_on_cpu import megatron

    with megatron():
        draw = random.Random(seed)
        built = _builder(draw)
        for _ in range(4):
            types = [draw.choice(TYPES) for _ in range(LAYERS)]
            if (found := built(types, 2)) != types:
                return f"of the types {types} the layers have {found}"
            if built("a2a", 2) != ["a2a"] * LAYERS or built(None, 2) != [None] * LAYERS:
                return "one type for all layers is not what each of them has"
            if built(types, 1) != [None] * LAYERS:
                return "without context parallelism a layer has a type"
    return ""


def _builder(draw: random.Random) -> Callable[[Any, int], list[Any]]:
    """Return the function that builds all layers, and says what types they were given.

    It takes the types of the configuration and the context parallel size.
    """
    import torch
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules

    given = list[Any]()
    copied = list[Any]()

    class Attention(torch.nn.Module):
        """Notes what the layer asks for."""

        def __init__(self, config: Any, cp_comm_type: Any = None, **_options: Any) -> None:
            super().__init__()
            given.append(cp_comm_type)
            copied.append(copy.deepcopy(config).cp_comm_type)

    spec = TransformerLayerSubmodules(self_attention=ModuleSpec(module=Attention))

    class Own(TransformerLayer):  # type: ignore[misc, unused-ignore]
        """A layer that somebody has derived."""

    def built(types: Any, ranks: int) -> list[Any]:
        config = TransformerConfig(
            num_layers=LAYERS,
            hidden_size=8,
            num_attention_heads=2,
            context_parallel_size=ranks,
            cp_comm_type=types,
        )
        given.clear()
        copied.clear()
        for number in range(1, LAYERS + 1):
            try:
                layer = draw.choice((TransformerLayer, Own))(config, spec, layer_number=number)
            except IndexError:
                return [*given, "IndexError"]
            if type(layer.config.cp_comm_type) is not type(types) or layer.config.cp_comm_type != types:
                return ["another list afterwards"]
        if any(type(one) is not type(types) or one != types for one in copied):
            return ["another list in a copy of the configuration"]
        return list(given)

    return built


CONTRACT = Contract(check=with_patches(wrong, "megatron.cp-comm-type-by-layer"), before=("torch",))
