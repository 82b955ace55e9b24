"""Each rank has its own heads of queries and gate, those of the layer that one process computes."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from overlay.compat.contracts import megatron_parts as parts
from overlay.compat.contracts.forked import wrong_on_ranks

RANKS, HEADS, SIZE, HIDDEN, TOKENS = 4, 8, 4, 16, 5


def wrong(seed: str) -> str:
    """Return what a rank finds wrong, empty if none finds anything."""
    return wrong_on_ranks(partial(_rank, seed), "megatron.core.transformer.attention", ranks=RANKS)


def _rank(seed: str) -> Iterator[str]:
    """Yield what is wrong on one of the ranks, which all draw the same."""
    import torch
    import torch.distributed as dist
    from megatron.core.transformer.attention import Attention

    from overlay.compat import megatron_on_cpu

    megatron_on_cpu.start_megatron(tensor_model_parallel_size=RANKS)
    if not hasattr(Attention, "_apply_output_gate"):
        return  # there is no gate
    torch.manual_seed(int(seed) % 2**31)
    for groups in (1, 2, 4):
        layer = _layer(groups)
        per_group = HEADS // groups
        rows = groups * (2 * per_group + 2) * SIZE
        weight, states = torch.randn(rows, HIDDEN), torch.randn(TOKENS, 1, HIDDEN)
        with torch.no_grad():
            layer.linear_qkv.weight.copy_(weight.chunk(RANKS)[dist.get_rank()])
        query, _, _, gate = layer.get_query_key_value_tensors(states, output_gate=True)
        # A group is its queries, their gates, a key and a value.
        whole = (states.double() @ weight.double().T).view(TOKENS, groups, 2 * per_group + 2, SIZE)
        for name, found, first in (("queries", query, 0), ("gates", gate, per_group)):
            right = whole[:, :, first : first + per_group].reshape(TOKENS, HEADS, SIZE)
            right = right.chunk(RANKS, dim=1)[dist.get_rank()][:, None]
            if found.shape != right.shape or not parts.relative_error(found.detach(), right) < 1e-5:
                yield f"with {groups} groups of queries the {name} are not those of this rank's heads"
        values = torch.randn(TOKENS, 1, HEADS // RANKS * SIZE)
        layer._apply_output_gate(values, gate)


def _layer(groups: int) -> Any:
    """Build Megatron's self attention over the tensor parallel ranks."""
    import torch
    from megatron.core import tensor_parallel
    from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
    from megatron.core.transformer.enums import AttnMaskType

    class Core(torch.nn.Module):
        def __init__(self, *_: object, **__: object) -> None:
            super().__init__()

    config = parts.small_transformer(
        hidden_size=HIDDEN, num_attention_heads=HEADS, num_query_groups=groups, kv_channels=SIZE,
        tensor_model_parallel_size=RANKS, attention_output_gate=True, add_bias_linear=False,
    )  # fmt: skip
    submodules = SelfAttentionSubmodules(
        linear_qkv=tensor_parallel.ColumnParallelLinear,
        core_attention=Core,
        linear_proj=tensor_parallel.RowParallelLinear,
    )
    return SelfAttention(config, submodules, layer_number=1, attn_mask_type=AttnMaskType.causal)


CONTRACT = parts.contract("megatron.gate-of-own-heads", wrong)
