"""A layer over two context parallel ranks computes what one process does, and has its gradients."""

import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from overlay.compat.contracts import megatron_parts as parts
from overlay.compat.contracts.forked import wrong_on_ranks

_LAYER = "megatron.core.ssm.gated_delta_net"
RANKS, TOKENS, SEQUENCES, HIDDEN = 2, 12, 2, 16
TOLERANCE = 1e-4


def wrong(seed: str) -> str:
    """Return what is wrong with a gated delta net under context parallelism, empty if nothing is."""
    from overlay.compat import fla_on_cpu

    # Told to be deterministic, Megatron has the kernels in torch.
    fla_on_cpu.stand_in()
    modules = (_LAYER, "megatron.core.transformer.transformer_layer", "megatron.core.distributed")
    try:
        return wrong_on_ranks(partial(_rank, seed), *modules, ranks=RANKS)
    except ModuleNotFoundError as error:
        if error.name != _LAYER:
            raise
        return ""  # there is none


def _rank(seed: str) -> Iterator[str]:
    """Yield what is wrong on one of the ranks, which all draw the same."""
    import torch

    from overlay.compat import megatron_on_cpu

    under = {f"{_LAYER}{name}" for name in ("", ".common")}
    if not any(hasattr(sys.modules.get(name), "tensor_a2a_cp2hp") for name in under):
        return  # it is refused with context parallelism
    megatron_on_cpu.start_megatron()
    torch.manual_seed(int(seed) % 2**31)
    plain = _attention()
    with torch.no_grad():
        for one in plain.parameters():
            one.copy_(torch.randn_like(one) / 2)
    megatron_on_cpu.start_megatron(context_parallel_size=RANKS)
    for kind in ("p2p", "a2a", ["a2a", "p2p"]):
        try:
            layer = _attention(context_parallel_size=RANKS, cp_comm_type=kind)
        except TypeError as error:
            yield f"with cp_comm_type={kind!r} the layer is not built: {error}"
            continue
        layer.load_state_dict(plain.state_dict())
        yield from (f"with cp_comm_type={kind!r} {found}" for found in _differing(layer, plain))


def _differing(layer: Any, plain: Any) -> Iterator[str]:
    """Yield what a layer over the ranks and one in this process differ in, by the same states."""
    import torch
    import torch.distributed as dist

    states, weights = torch.randn(2, TOKENS, SEQUENCES, HIDDEN)
    whole, own = (states.clone().requires_grad_(), _own(states).requires_grad_())
    plain.zero_grad()
    right, found = plain(whole, None)[0], layer(own, None)[0]
    (right * weights).sum().backward()
    (found * _own(weights)).sum().backward()
    pairs = {"output": (found, _own(right)), "gradient of the states": (own.grad, _own(whole.grad))}
    for (name, one), other in zip(layer.named_parameters(), plain.parameters(), strict=True):
        dist.all_reduce(one.grad)
        pairs[f"gradient of {name}"] = (one.grad, other.grad)
    for name, (one, other) in pairs.items():
        if not parts.relative_error(one.detach(), other.detach()) < TOLERANCE:
            yield f"the {name} is another than in one process"


def _own(tensor: Any) -> Any:
    """Return what a rank has of a sequence: of twice as many chunks as there are ranks one of each half."""
    import torch
    import torch.distributed as dist

    chunks = tensor.detach().chunk(2 * RANKS)
    return torch.cat([chunks[dist.get_rank()], chunks[-1 - dist.get_rank()]])


def _attention(**settings: Any) -> Any:
    """Return the gated delta net that Megatron's transformer layer builds."""
    import torch
    from megatron.core import tensor_parallel
    from megatron.core.ssm import gated_delta_net
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules

    class Norm(torch.nn.RMSNorm):
        def __init__(self, config: Any, hidden_size: int, eps: float) -> None:
            super().__init__(hidden_size, eps)

    # By chunks of the sequence, which some commits know as well, there is no kernel in torch.
    if "linear_cp_mode" in TransformerConfig.__dataclass_fields__:
        settings["linear_cp_mode"] = "headwise"
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
