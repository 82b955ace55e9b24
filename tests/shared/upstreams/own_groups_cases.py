"""Layers of Megatron that are given a tensor parallel group of their own, and use the one of its state.

Of four ranks the state has groups 0, 1 and 2, 3, and the layers are given 0, 2 and 1, 3.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

#: Tokens, sequences, hidden size, heads.
TOKENS, SEQUENCES, HIDDEN, HEADS = 5, 2, 8, 4
OWN = ((0, 2), (1, 3))


def cases(_world: int) -> list[tuple[str, dict[str, int], Callable[[], dict[str, Any]]]]:
    """Return the layers, cross attention on one process first."""
    return [
        ("cross attention, one process", {"tensor": 1}, _cross_attention),
        ("cross attention", {"tensor": 2}, _cross_attention),
        ("recomputation of multi-token prediction", {"tensor": 2}, _recomputation),
    ]


#: The gradients of the inputs on one process.
_whole: list[Any] = []


def _own() -> Any:
    """Return the group of its own that this rank's layer is given."""
    import torch.distributed as dist

    groups = [dist.new_group(list(ranks)) for ranks in OWN]
    return next(group for group, ranks in zip(groups, OWN, strict=True) if dist.get_rank() in ranks)


def _cross_attention() -> dict[str, Any]:
    """Return how far the gradients of the inputs are from those of one process, relatively."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.attention import CrossAttention, CrossAttentionSubmodules

    class Attention(torch.nn.Module):
        def __init__(self, *_: object, **__: object) -> None:
            super().__init__()

        def forward(self, query: Any, key: Any, value: Any, *_: object, **__: object) -> Any:
            q, k, v = (one.permute(1, 2, 0, 3) for one in (query, key, value))
            return torch.nn.functional.scaled_dot_product_attention(q, k, v).permute(2, 0, 1, 3).flatten(2)

    ranks = parallel_state.get_tensor_model_parallel_world_size()
    groups = ProcessGroupCollection.use_mpu_process_groups(required_pgs=["tp", "cp"])
    if ranks > 1:
        groups.tp = _own()
    config = TransformerConfig(
        num_layers=1, hidden_size=HIDDEN, num_attention_heads=HEADS, attention_dropout=0.0,
        hidden_dropout=0.0, add_bias_linear=False, use_cpu_initialization=True,
        tensor_model_parallel_size=ranks, gradient_accumulation_fusion=False,
    )  # fmt: skip
    parts = CrossAttentionSubmodules(
        linear_q=ColumnParallelLinear,
        linear_kv=ColumnParallelLinear,
        core_attention=Attention,
        linear_proj=RowParallelLinear,
    )
    layer = CrossAttention(config, parts, layer_number=1, pg_collection=groups)
    # All ranks have the same input; ranks of one group of their own have the halves of one layer.
    draw = torch.Generator().manual_seed(int(os.environ["OVERLAY_TEST_SEED"]))
    rank = groups.tp.rank()
    with torch.no_grad():
        for name, parameter in sorted(layer.named_parameters()):
            dim = int("proj" in name)
            shape = [size * (ranks if at == dim else 1) for at, size in enumerate(parameter.shape)]
            parameter.copy_(torch.randn(shape, generator=draw).chunk(ranks, dim)[rank])
    inputs = [torch.randn(TOKENS, SEQUENCES, HIDDEN, generator=draw) for _ in range(3)]
    states, context = (one.requires_grad_() for one in inputs[:2])
    out, _ = layer(states, None, key_value_states=context)
    (out * inputs[2]).sum().backward()
    found = [states.grad, context.grad]
    if ranks == 1:
        _whole[:] = found
    return {
        name: float((one - right).abs().max() / right.abs().max())
        for name, one, right in zip(("states", "context"), found, _whole, strict=True)
    }


def _recomputation() -> dict[str, Any]:
    """Return the group by which activations are split, as Transformer Engine is told, and the layer's own."""
    import sys
    from contextlib import nullcontext
    from inspect import Parameter, signature
    from types import ModuleType, SimpleNamespace

    import torch.distributed as dist
    from megatron.core.transformer import multi_token_prediction

    told = list[Any]()

    def te_checkpoint(
        _function: Any, _distribute: Any, _tracker: Any, group: Any, *_: Any, **_more: Any
    ) -> None:
        told.append(group)

    module = ModuleType("megatron.core.extensions.transformer_engine")
    vars(module)["te_checkpoint"] = te_checkpoint
    before = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module
    vars(multi_token_prediction)["get_fp8_context"] = lambda *_: nullcontext()
    forward = multi_token_prediction.MultiTokenPredictionLayer._checkpointed_forward
    config = SimpleNamespace(
        fp8="e4m3", fp4=None, fp8_recipe="tensorwise", distribute_saved_activations=True,
        recompute_method="uniform", recompute_num_layers=1,
    )  # fmt: skip
    layer = SimpleNamespace(config=config, tp_group=_own(), _proj_and_transformer_layer=None)
    several = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    given = [name for name, one in signature(forward).parameters.items() if one.kind not in several]
    forward(layer, **dict.fromkeys(given[1:]))
    if before is None:
        del sys.modules[module.__name__]
    else:
        sys.modules[module.__name__] = before
    return {
        "told": dist.get_process_group_ranks(told[0]),
        "own": dist.get_process_group_ranks(layer.tp_group),
    }
