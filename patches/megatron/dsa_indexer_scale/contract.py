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
    return _of_steps(_plain) or _of_steps(_combined)


def _of_steps(model_of: Any) -> str:
    import torch

    for batches in (1, 4):
        for scale in (None, 64.0):
            for per_token in (False, True):
                config = parts.small_transformer(calculate_per_token_loss=per_token)
                config.experimental_attention_variant = "dsa"
                config.dsa_indexer_loss_coeff = 1.0
                config.grad_scale_func = None if scale is None else lambda loss, scale=scale: loss * scale
                model = model_of(config)
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
                    kind = f"{model_of.__name__[1:]}, {batches} micro-batches, loss scale {scale}"
                    return f"{kind}, per token {per_token}: {times:.3g} times the gradient"
    return ""


def _forward(chunk: Any, batch: Any) -> Any:
    from megatron.core.transformer.experimental_attention_variant.dsa import DSAIndexerLossAutoScaler

    return DSAIndexerLossAutoScaler.apply(batch @ chunk.main, (batch @ chunk.indexer).square().mean())


def _plain(config: Any) -> Any:
    """Return a chunk for Megatron's usual schedules."""
    return parts.chunk(config, _forward)


def _combined(config: Any) -> Any:
    """Return a chunk for the schedule that runs the forward of a micro-batch beside another's backward."""
    import torch
    from megatron.core.enums import ModelType
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.pipeline_parallel.utils import AbstractSchedulePlan
    from megatron.core.transformer.module import MegatronModule

    torch.cuda.nvtx.range_push = torch.cuda.nvtx.range_pop = lambda *_: 0  # type: ignore[assignment]

    class Plan(AbstractSchedulePlan):
        event = torch.cuda.Event()

        def __init__(self, model: Any, batch: Any) -> None:
            self.model, self.batch, self.output = model, batch, None

        @staticmethod
        def run(forward: Any, backward: Any, b_grad: Any = None, **_: Any) -> Any:
            if backward is not None:
                backward.output.backward(b_grad)
            if forward is None:
                return None
            forward.output = _forward(forward.model, forward.batch)
            return forward.output

    class Chunk(GPTModel):
        def __init__(self) -> None:
            MegatronModule.__init__(self, config)
            self.model_type = ModelType.encoder_or_decoder

        def set_input_tensor(self, _tensor: Any) -> None:
            """Take nothing from a stage before."""

        def build_schedule_plan(self, batch: Any) -> Any:
            return Plan(self, batch)

    config.overlap_moe_expert_parallel_comm = True
    return Chunk()


def _step(data: Any, model: Any, return_schedule_plan: bool = False) -> Any:
    import torch

    def loss(output: Any) -> Any:
        total = 0.0 * output.sum()
        return total, torch.tensor(output.numel(), dtype=torch.int), {}

    return (model.build_schedule_plan if return_schedule_plan else model)(next(data)), loss


CONTRACT = parts.contract("megatron.dsa-indexer-scale", wrong)
