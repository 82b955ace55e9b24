"""The gradient of the indexer's loss is the mean over micro-batches, whatever the loss scale."""

from importlib import import_module
from typing import Any

from overlay.compat.contracts import megatron_parts as parts

TOKENS, SEQUENCES, HIDDEN = 3, 2, 8


@parts.on_one_rank
def wrong(_seed: str) -> str:
    """Return with which settings the gradient of the indexer's loss is not the mean, empty if none."""
    try:
        import_module("megatron.core.transformer.experimental_attention_variant.dsa")
    except ModuleNotFoundError:
        return ""  # there is no DSA
    return _of_steps()


def _of_steps() -> str:
    import torch
    from megatron.core.transformer.experimental_attention_variant.dsa import DSAIndexerLossAutoScaler

    def forward(chunk: Any, batch: Any) -> Any:
        return DSAIndexerLossAutoScaler.apply(batch @ chunk.main, (batch @ chunk.indexer).square().mean())

    for batches in (1, 4):
        for scale in (None, 64.0):
            for per_token in (False, True):
                config = parts.small_transformer(calculate_per_token_loss=per_token)
                config.experimental_attention_variant = "dsa"
                config.dsa_indexer_loss_coeff = 1.0
                config.grad_scale_func = None if scale is None else lambda loss, scale=scale: loss * scale
                model = parts.chunk(config, forward)
                model.main = torch.nn.Parameter(torch.randn(HIDDEN))
                model.indexer = torch.nn.Parameter(torch.randn(HIDDEN))
                data = torch.randn(batches, TOKENS, SEQUENCES, HIDDEN)
                parts.run_schedule(
                    [model], _step, iter(data), batches=batches, tokens=TOKENS, sequences=SEQUENCES
                )
                # Of one process in float64.
                inputs, weights = data.double(), model.indexer.detach().double()
                grads = [2 * ((one @ weights)[..., None] * one).mean(dim=(0, 1)) for one in inputs]
                right = sum(grads) * (scale or 1.0) / (1 if per_token else batches)
                if not parts.relative_error(model.indexer.grad, right) < 1e-5:
                    times = float(model.indexer.grad.double().norm() / right.norm())
                    kind = f"{batches} micro-batches, loss scale {scale}, per token {per_token}"
                    return f"{kind}: the gradient is {times:.3g} times what it should be"
    return ""


def _step(data: Any, model: Any) -> Any:
    import torch

    def loss(output: Any) -> Any:
        total = 0.0 * output.sum()
        return total, torch.tensor(output.numel(), dtype=torch.int), {}

    return model(next(data)), loss


CONTRACT = parts.contract("megatron.dsa-indexer-scale", wrong)
