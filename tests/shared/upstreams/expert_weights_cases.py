"""What slime sends of the weights of experts and of attention sinks, by its own `all_gather_param`.

The folder of slime is in `SLIME_FOLDER`. Megatron's experts are on the stand-in for Transformer Engine.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

EXPERTS, WIDE, NARROW, HEADS = 2, 8, 4, 4


def cases(world: int) -> list[tuple[str, dict[str, int], Callable[[], dict[str, bool]]]]:
    """Return a case for experts that are split over all ranks, and for whole ones on each."""
    return [
        ("parts of experts", {"tensor": world, "expert_tensor": world}, functools.partial(_sent, world)),
        (
            "whole experts",
            {"tensor": world, "expert": world, "expert_tensor": 1},
            functools.partial(_sent, 1),
        ),
    ]


def _sent(split: int) -> dict[str, bool]:
    """Return of each weight whether what is sent of it is the whole one.

    Of fc1 a rank has its part of the gate's rows and then of the other's. What is sent has all of the gate's
    rows first.
    """
    sys.path.insert(0, os.environ["SLIME_FOLDER"])
    from overlay.compat.slime_on_cpu import stand_in

    stand_in()
    import torch
    from megatron.core import optimizer, parallel_state
    from megatron.core.extensions import transformer_engine as te
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.tensor_parallel import set_defaults_if_not_set_tensor_model_parallel_attributes
    from megatron.core.transformer.module import MegatronModule
    from slime.backends.megatron_utils.update_weight.common import all_gather_param

    from overlay.compat.contracts import megatron_parts as parts

    draw = parts.generator()
    tensor = parallel_state.get_tensor_model_parallel_world_size()
    config = parts.small_transformer(
        num_moe_experts=EXPERTS,
        tensor_model_parallel_size=tensor,
        expert_model_parallel_size=parallel_state.get_expert_model_parallel_world_size(),
        expert_tensor_parallel_size=split,
        sequence_parallel=split == 1,
        add_bias_linear=False,
    )
    model: Any = MegatronModule(config)
    wanted = {}
    layers = (("linear_fc1", te.TEColumnParallelGroupedLinear, (NARROW, 2 * WIDE)),
              ("linear_fc2", te.TERowParallelGroupedLinear, (WIDE, NARROW)))  # fmt: skip
    rank = parallel_state.get_expert_tensor_parallel_rank()
    for layer, kind, sizes in layers:
        module = kind(
            EXPERTS, *sizes, config=config, init_method=lambda one: one, bias=False,
            skip_bias_add=False, is_expert=True, tp_comm_buffer_name=None,
        )  # fmt: skip
        setattr(model, layer, module)
        for name, parameter in module.named_parameters():
            whole = torch.randn(sizes[::-1], generator=draw)
            own = whole.chunk(split, 1)[rank]
            if layer == "linear_fc1":
                own = torch.cat([half.chunk(split)[rank] for half in whole.chunk(2)])
            parameter.data = own.contiguous()
            wanted[f"decoder.layers.0.mlp.experts.{layer}.{name}"] = parameter, whole
    heads = torch.randn(HEADS, generator=draw)
    own = heads.chunk(tensor)[parallel_state.get_tensor_model_parallel_rank()]
    model.attention = torch.nn.Module()
    model.attention.softmax_offset = torch.nn.Parameter(own.clone())
    wanted["decoder.layers.0.self_attention.core_attention.softmax_offset"] = (
        model.attention.softmax_offset,
        heads,
    )
    for parameter in model.parameters():
        set_defaults_if_not_set_tensor_model_parallel_attributes(parameter)
    optimizer._get_param_groups([model], OptimizerConfig(lr=1.0), {})
    found = {name: all_gather_param(name, parameter) for name, (parameter, _) in wanted.items()}
    return {name: torch.equal(found[name], wanted[name][1]) for name in wanted}
