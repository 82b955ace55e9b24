"""The layer that is built under context parallelism computes what the one that is built without does."""

import sys
from types import ModuleType
from typing import Any

from overlay.compat.contracts import megatron_parts as parts

TOKENS, SEQUENCES, HIDDEN = 12, 2, 16


@parts.on_one_rank
def wrong(_seed: str) -> str:
    """Return what is wrong with a gated delta net under context parallelism, empty if nothing is."""
    import torch

    _stand_in()
    try:
        from megatron.core.ssm import gated_delta_net
    except ImportError:
        return ""  # there is none
    under = {f"{gated_delta_net.__name__}{name}" for name in ("", ".common")}
    if not any(hasattr(sys.modules.get(name), "tensor_a2a_cp2hp") for name in under):
        return ""  # it is refused with context parallelism
    plain = _attention()
    for kind in ("p2p", "a2a", ["a2a", "p2p"]):
        try:
            layer = _attention(context_parallel_size=2, cp_comm_type=kind)
        except TypeError as error:
            return f"with cp_comm_type={kind!r} the layer is not built: {error}"
        layer.load_state_dict(plain.state_dict())
        states = torch.randn(TOKENS, SEQUENCES, HIDDEN)
        if not torch.equal(layer(states, None)[0], plain(states, None)[0]):
            return f"with cp_comm_type={kind!r} the layer computes something else"
    return ""


def _stand_in() -> None:
    """Stand in for the names of `fla`: told to be deterministic, Megatron has the kernels in torch."""
    names: dict[str, Any] = {
        "modules.convolution": {"causal_conv1d": None},
        "modules.l2norm": {"l2norm": lambda x: x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()},
        "ops.cp": {"build_cp_context": None},
        "ops.gated_delta_rule": {"chunk_gated_delta_rule": None},
    }
    for name in ("", ".modules", ".ops", *(f".{name}" for name in names)):
        sys.modules[f"fla{name}"] = ModuleType(f"fla{name}")
        vars(sys.modules[f"fla{name}"]).update(names.get(name[1:], {}))


def _attention(**settings: Any) -> Any:
    """Return the gated delta net that Megatron's transformer layer builds."""
    import torch
    from megatron.core import tensor_parallel
    from megatron.core.ssm import gated_delta_net
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules

    class Norm(torch.nn.RMSNorm):
        def __init__(self, config: Any, hidden_size: int, eps: float) -> None:
            super().__init__(hidden_size, eps)

    config = parts.small_transformer(
        num_layers=2, hidden_size=HIDDEN, activation_func=torch.nn.functional.silu, deterministic_mode=True,
        linear_conv_kernel_dim=3, linear_key_head_dim=6, linear_value_head_dim=5, linear_num_key_heads=2,
        linear_num_value_heads=4, **settings,
    )  # fmt: skip
    inner = gated_delta_net.GatedDeltaNetSubmodules(
        in_proj=tensor_parallel.ColumnParallelLinear,
        out_norm=Norm,
        out_proj=tensor_parallel.RowParallelLinear,
    )
    attention = ModuleSpec(module=gated_delta_net.GatedDeltaNet, submodules=inner)
    submodules = TransformerLayerSubmodules(self_attention=attention)
    return TransformerLayer(config, submodules, layer_number=1).self_attention


CONTRACT = parts.contract("megatron.gdn-cp-comm-type", wrong)
