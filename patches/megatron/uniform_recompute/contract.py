"""Recomputed in chunks of any size, a block has the output and the gradients that it has without."""

from typing import Any

from overlay.compat.contracts import megatron_parts as parts

HIDDEN, TOKENS = 8, 6


@parts.on_one_rank
def wrong(_seed: str) -> str:
    """Return what fails, or differs from the block without recomputation; empty if nothing does."""
    import torch

    for layers in (2, 3, 5):
        config = parts.small_transformer(num_layers=layers, hidden_size=HIDDEN)
        run = _runner(config)
        wanted = run()
        config.recompute_granularity = "full"
        counts = {"uniform": layers + 1, "block": layers - 1}
        for method, count in [(one, n) for one, most in counts.items() for n in range(1, most + 1)]:
            config.recompute_method, config.recompute_num_layers = method, count
            try:
                found = run()
            except IndexError as error:
                return f"{layers} layers, {count} at a time: IndexError: {error}"
            pairs = zip(found, wanted, strict=True)
            if not all(torch.allclose(one, other, rtol=1e-4, atol=1e-5) for one, other in pairs):
                return f"{layers} layers, {method}, {count} at a time: output or gradient is off"
            if type(config.recompute_num_layers) is not int or config.recompute_num_layers != count:
                return "the configuration is another one afterwards"
    return ""


def _runner(config: Any) -> Any:
    """Return what runs a block: it returns the output, and the gradients of the input and of all weights."""
    import torch
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.transformer_block import TransformerBlock

    block: Any = TransformerBlock(config, get_gpt_layer_local_spec(), post_layer_norm=False).train()
    states, weights = torch.randn(2, TOKENS, 2, HIDDEN)
    mask = torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.bool).triu(1)

    def run() -> list[Any]:
        given = states.clone().requires_grad_()
        out = block(given, mask)
        # Not `grad`, under which recomputation does not work.
        block.zero_grad()
        (out * weights).sum().backward()
        grads = [one.grad.clone() for one in block.parameters() if one.requires_grad]
        return [out.detach(), given.grad, *grads]

    return run


CONTRACT = parts.contract("megatron.uniform-recompute", wrong)
