"""Recomputed in chunks of any size, a block has the output and the gradients that it has without."""

from __future__ import annotations

import random
from typing import Any

from overlay.compat.contracts import megatron_parts as parts
from overlay.patch import Contract
from overlay.testing import with_patches

HIDDEN, TOKENS = 8, 6


def wrong(seed: str) -> str:
    """Return what fails, or differs from the block without recomputation; empty if nothing does."""
    import torch

    from overlay.compat.megatron_on_cpu import megatron

    draw = random.Random(seed)
    with megatron():
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
        from megatron.core.transformer.transformer_block import TransformerBlock

        torch.manual_seed(draw.randrange(2**31))
        for layers in (2, 3, 5):
            config = parts.small_transformer(num_layers=layers, hidden_size=HIDDEN)
            block: Any = TransformerBlock(config, get_gpt_layer_local_spec(), post_layer_norm=False).train()
            states = torch.randn(TOKENS, 2, HIDDEN)
            weights = torch.randn(TOKENS, 2, HIDDEN)
            mask = torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.bool).triu(1)

            def run(
                block: Any = block, states: Any = states, weights: Any = weights, mask: Any = mask
            ) -> list[Any]:
                """Return the output, and the gradients of the input and of all weights."""
                given = states.clone().requires_grad_()
                out = block(given, mask)
                names = [one for one in block.parameters() if one.requires_grad]
                # Not `grad`, under which recomputation does not work.
                block.zero_grad()
                (out * weights).sum().backward()
                return [out.detach(), given.grad, *(one.grad.clone() for one in names)]

            wanted = run()
            config.recompute_granularity = "full"
            for method in ("uniform", "block"):
                for count in range(1, layers + 2 if method == "uniform" else layers):
                    config.recompute_method, config.recompute_num_layers = method, count
                    try:
                        found = run()
                    except IndexError as error:
                        return f"{layers} layers, {count} at a time: IndexError: {error}"
                    if any(
                        not torch.allclose(one, other, rtol=1e-4, atol=1e-5)
                        for one, other in zip(found, wanted, strict=True)
                    ):
                        return f"{layers} layers, {method}, {count} at a time: output or gradient is off"
                    if type(config.recompute_num_layers) is not int or config.recompute_num_layers != count:
                        return "the configuration is another one afterwards"
    return ""


CONTRACT = Contract(check=with_patches(wrong, "megatron.uniform-recompute"), before=("torch",))
