"""Run with a Megatron first on the path: prints what its manager for DeepEP keeps of past micro-batches.

    python deepep_check.py

The last line is JSON: by whether the layer is recomputed, after each of several micro-batches how many inputs
are still in memory. The kernels of DeepEP are stood in for by copies, on one rank.
"""

from __future__ import annotations

import gc
import json
import sys
import weakref
from typing import Any

from overlay.compat.megatron_on_cpu import megatron

MICRO_BATCHES = 4
TOKENS, HIDDEN, EXPERTS, CHOSEN = 16, 8, 4, 2


def main() -> None:
    """Print it."""
    answers, sys.stdout = sys.stdout, sys.stderr
    with megatron():
        found = {how: _kept(recomputed=how == "recomputed") for how in ("plain", "recomputed")}
    answers.write(json.dumps(found) + "\n")


def _kept(*, recomputed: bool) -> list[int]:
    import torch
    from megatron.core import tensor_parallel

    manager = _manager()
    router = torch.nn.Parameter(torch.randn(HIDDEN, EXPERTS))
    inputs: list[weakref.ref[Any]] = []

    class Held(torch.autograd.Function):
        """Hands on what it gets, and holds a tensor by its node, as kernels hold what they need."""

        @staticmethod
        def forward(ctx: Any, states: Any) -> Any:
            ctx.needed = states.clone()
            inputs.append(weakref.ref(ctx.needed.untyped_storage()))
            return states.clone()

        @staticmethod
        def backward(_ctx: Any, *grads: Any) -> Any:
            return grads[0]

    def layer(states: Any) -> Any:
        probs = (Held.apply(states) @ router).softmax(-1)
        chosen = torch.zeros(TOKENS, EXPERTS, dtype=torch.bool)
        chosen.scatter_(1, probs.topk(CHOSEN, -1).indices, True)
        manager.setup_metadata(chosen, probs * chosen)
        rows, weights = manager.get_permuted_hidden_states_by_experts(manager.dispatch(states))
        return manager.combine(manager.get_restored_hidden_states_by_experts(rows * weights.unsqueeze(-1)))

    found = []
    for _ in range(MICRO_BATCHES):
        states = torch.randn(TOKENS, HIDDEN, requires_grad=True)
        out = tensor_parallel.checkpoint(layer, False, states) if recomputed else layer(states)
        out.sum().backward()
        del states, out
        gc.collect()
        found.append(sum(one() is not None for one in inputs))
    return found


def _manager() -> Any:
    from types import SimpleNamespace

    import torch
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.moe import token_dispatcher

    vars(token_dispatcher).update(
        fused_dispatch=lambda states, chosen, probs, count, _group, **_options: (
            *(states * 1.0, chosen, probs * 1.0),
            *(torch.bincount(chosen.flatten(), minlength=count), object()),
        ),
        fused_combine=lambda states, _group, _handle, **_options: (states * 1.0, None),
        set_deepep_num_sms=lambda *_count: None,
    )
    config = TransformerConfig(
        num_layers=1,
        hidden_size=HIDDEN,
        num_attention_heads=2,
        num_moe_experts=EXPERTS,
        moe_router_topk=CHOSEN,
        moe_router_dtype="fp32",
        add_bias_linear=False,
    )
    return token_dispatcher._DeepepManager(SimpleNamespace(size=lambda: 1), EXPERTS, CHOSEN, EXPERTS, config)


if __name__ == "__main__":
    main()
