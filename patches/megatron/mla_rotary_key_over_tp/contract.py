"""Each tensor parallel rank has the gradients of multi-latent attention that one process computes."""

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

from overlay.compat.contracts import megatron_parts as parts
from overlay.compat.contracts.forked import wrong_on_ranks

RANKS = 2
#: Tokens, sequences, hidden size, heads, size of the latent keys and values, and of a head's parts.
TOKENS, SEQUENCES, HIDDEN, HEADS, LATENT, PLAIN, ROTARY, VALUE = 6, 2, 12, 4, 10, 5, 4, 3
#: Relative to the greatest element, of gradients in float32.
TOLERANCE = 1e-4


def wrong(seed: str) -> str:
    """Return what a rank finds wrong, empty if none finds anything."""
    from overlay.compat import cpu_transformer_engine

    cpu_transformer_engine.install()
    module = "megatron.core.transformer.multi_latent_attention"
    return wrong_on_ranks(partial(_rank, seed), module, ranks=RANKS)


def _rank(seed: str) -> Iterator[str]:
    """Yield what is wrong on one of the ranks, which all draw the same."""
    from megatron.core import __version__, parallel_state

    from overlay.compat import megatron_on_cpu

    kinds = ("split",) if __version__.startswith(("0.12.", "0.13.")) else ("split", "whole")
    megatron_on_cpu.start_megatron()
    wanted = _gradients(seed, "split", parallel=False)
    parallel_state.destroy_model_parallel()
    megatron_on_cpu.start_megatron(tensor_model_parallel_size=RANKS)
    for kind in kinds:
        for parallel, recompute in itertools.product((False, True), repeat=2):
            grads = _gradients(seed, kind, parallel=parallel, recompute=recompute)
            for name, grad in grads.items():
                right = _own(name, wanted[name], kind, parallel=parallel)
                if not parts.relative_error(grad, right) < TOLERANCE:
                    mode = "with" if parallel else "without"
                    mode += " sequence parallelism, recomputed" if recompute else " sequence parallelism"
                    yield f"{mode}, down projection {kind}: gradient of {name}"


def _gradients(seed: str, kind: str, *, parallel: bool, recompute: bool = False) -> dict[str, Any]:
    """Return the gradient of the layer's input and of its weights on this rank."""
    import torch
    import torch.distributed as dist

    draw = torch.Generator().manual_seed(int(seed) % 2**31)

    def random(*shape: int) -> Any:
        return torch.randn(*shape, generator=draw)

    states, by = random(TOKENS, SEQUENCES, HIDDEN), random(TOKENS, SEQUENCES, HIDDEN)
    weights = {
        "linear_q_proj.weight": random(HEADS * (PLAIN + ROTARY), HIDDEN) / 4,
        "linear_kv_down_proj.weight": random(LATENT + ROTARY, HIDDEN) / 4,
        "linear_kv_up_proj.weight": random(HEADS * (PLAIN + VALUE), LATENT) / 4,
        "linear_proj.weight": random(HIDDEN, HEADS * VALUE) / 4,
    }
    layer = _layer(kind, parallel=parallel)
    parameters = dict(layer.named_parameters())
    with torch.no_grad():
        for name, one in weights.items():
            parameters[name].copy_(_own(name, one, kind, parallel=parallel))
    states = _own("input", states, kind, parallel=parallel).clone().requires_grad_()
    if recompute:
        import torch.utils.checkpoint

        out = torch.utils.checkpoint.checkpoint(lambda x: layer(x, None)[0], states, use_reentrant=True)
    else:
        out, _ = layer(states, None)
    (out * _own("input", by, kind, parallel=parallel)).sum().backward()
    if parallel and kind == "whole":  # of what every rank has whole, Megatron sums the gradient after a step
        dist.all_reduce(parameters["linear_kv_down_proj.weight"].grad)
    return {"input": states.grad} | {name: parameters[name].grad for name in weights}


def _own(name: str, one: Any, kind: str, *, parallel: bool) -> Any:
    """Return what this rank has of the input, or of a weight."""
    from megatron.core import parallel_state

    whole = not parallel if name == "input" else kind == "whole" and "down" in name
    ranks = 1 if whole else parallel_state.get_tensor_model_parallel_world_size()
    dim = 1 if name == "linear_proj.weight" else 0
    return one.chunk(ranks, dim=dim)[parallel_state.get_tensor_model_parallel_rank() % ranks]


def _layer(kind: str, *, parallel: bool) -> Any:
    """Build Megatron's layer with an attention in plain torch, and the down projection split or whole."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.enums import AttnMaskType
    from megatron.core.transformer.identity_op import IdentityOp
    from megatron.core.transformer.multi_latent_attention import MLASelfAttention, MLASelfAttentionSubmodules
    from megatron.core.transformer.transformer_config import MLATransformerConfig

    class Attention(torch.nn.Module):
        def __init__(self, *_: object, **__: object) -> None:
            super().__init__()

        def forward(self, query: Any, key: Any, value: Any, *_: object, **__: object) -> Any:
            q, k, v = (one.permute(1, 2, 0, 3) for one in (query, key, value))
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return out.permute(2, 0, 1, 3).flatten(2)

    config = parts.small_transformer(
        MLATransformerConfig, hidden_size=HIDDEN, num_attention_heads=HEADS, q_lora_rank=None,
        kv_lora_rank=LATENT, qk_head_dim=PLAIN, qk_pos_emb_head_dim=ROTARY, v_head_dim=VALUE,
        rope_type="rope", apply_rope_fusion=False, add_bias_linear=False, sequence_parallel=parallel,
        tensor_model_parallel_size=parallel_state.get_tensor_model_parallel_world_size(),
    )  # fmt: skip
    down: Any = ColumnParallelLinear
    if kind == "whole":
        from megatron.core.extensions.transformer_engine import TELinear

        # The stand-in has no kernel.
        down = TELinear
        down.forward = lambda self, states: (states @ self.weight.T, None)
    submodules = MLASelfAttentionSubmodules(
        linear_q_proj=ColumnParallelLinear,
        linear_kv_down_proj=down,
        linear_kv_up_proj=ColumnParallelLinear,
        core_attention=Attention,
        linear_proj=RowParallelLinear,
        q_layernorm=IdentityOp,
        kv_layernorm=IdentityOp,
    )
    return MLASelfAttention(config, submodules, layer_number=1, attn_mask_type=AttnMaskType.causal)


CONTRACT = parts.contract("megatron.mla-rotary-key-over-tp", wrong)
