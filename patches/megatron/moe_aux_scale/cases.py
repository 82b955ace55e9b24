"""The gradient that auxiliary losses give a router on several ranks, through Megatron's own schedule."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

#: Sequences of a micro-batch, micro-batches of a step, tokens of a sequence, sizes of the model.
SEQUENCES, BATCHES, TOKENS, HIDDEN, EXPERTS, CHOSEN = 2, 3, 8, 6, 4, 2
COEFFICIENT = 0.1
#: The layouts of so many ranks.
LAYOUTS: dict[int, dict[str, dict[str, int]]] = {
    2: {"tp": {"tensor": 2}, "cp": {"context": 2}, "ep": {"expert": 2}, "dp": {"tensor": 1}},
    4: {
        "tp and cp": {"tensor": 2, "context": 2},
        "tp and ep": {"tensor": 2, "expert": 2, "expert_tensor": 1},
        "cp and ep": {"context": 2, "expert": 2},
    },
}
KINDS = ("aux_loss", "seq_aux_loss", "z_loss")
#: By micro-batch, the tokens of a sequence that are no padding: no rank of four is without one.
LENGTHS = (TOKENS, TOKENS - 1, TOKENS - 1)


def cases(world: int) -> list[tuple[str, dict[str, int], Callable[[], dict[str, float]]]]:
    """Return a case for each layout, loss and way to divide the gradient."""
    return [
        (
            f"{layout}, {kind}, {'per token' if per_token else 'per batch'}{', padded' if padded else ''}",
            sizes,
            functools.partial(
                _step,
                kind,
                sizes.get("tensor", 1),
                sizes.get("context", 1),
                per_token=per_token,
                padded=padded,
            ),
        )
        for layout, sizes in LAYOUTS[world].items()
        # Ranks have different numbers of tokens, then: without per-token loss they divide by their own.
        for per_token, padded in ((True, False), (False, False), *_padded())
        for kind in KINDS
    ]


def _padded() -> list[tuple[bool, bool]]:
    """Return how to divide in the cases with padding, where the router knows of it."""
    from inspect import signature

    from megatron.core.transformer.moe.router import TopKRouter

    return [(True, True)] if "padding_mask" in signature(TopKRouter.forward).parameters else []


def _step(kind: str, tensor: int, context: int, *, per_token: bool, padded: bool) -> dict[str, float]:
    """Take a step, and return how far the router's gradient is from that of one process, relatively."""
    import torch
    import torch.distributed as dist
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.pipeline_parallel import get_forward_backward_func

    draw = torch.Generator().manual_seed(int(os.environ["OVERLAY_TEST_SEED"]))
    weight = torch.randn(EXPERTS, HIDDEN, generator=draw, dtype=torch.float64)
    shards = tensor * context
    shape = (dist.get_world_size() // shards, BATCHES, TOKENS, SEQUENCES, HIDDEN)
    tokens = torch.randn(shape, generator=draw, dtype=torch.float64)
    lengths = LENGTHS if padded else (TOKENS,) * BATCHES
    right = _of_one_process(weight, tokens, kind, lengths)

    rank = dist.get_rank()
    model = _model(kind, per_token=per_token)
    with torch.no_grad():
        model.router.weight.copy_(weight)
    model.config.finalize_model_grads_func = finalize_model_grads
    parallel = DistributedDataParallel(model.config, DistributedDataParallelConfig(), model)
    # Tensor and context parallel ranks have their tokens of each sequence, data parallel ranks their own.
    mine = tokens[rank // shards].chunk(shards, dim=1)[rank % shards]
    padding = torch.stack([torch.arange(TOKENS) >= length for length in lengths])
    masks = padding.chunk(shards, dim=1)[rank % shards] if padded else [None] * BATCHES
    # Of the loss, tensor parallel ranks have all that their context parallel rank has.
    counts = (~padding).chunk(context, dim=1)[rank % shards // tensor].sum(1) * SEQUENCES

    def forward_step(data: Any, chunk: Any) -> Any:
        batch, mask, count = next(data)
        if mask is not None:
            mask = mask[:, None].expand(-1, SEQUENCES)
        return chunk(batch.float(), mask), lambda out: _loss(out, count, context, per_token=per_token)

    get_forward_backward_func()(
        forward_step_func=forward_step, data_iterator=iter(zip(mine, masks, counts, strict=True)),
        model=[parallel], num_microbatches=BATCHES,
        seq_length=TOKENS, micro_batch_size=SEQUENCES, forward_only=False,
    )  # fmt: skip
    found = model.router.weight.main_grad.double()
    return {"error": float((found - right).abs().max() / right.abs().max())}


def _loss(out: Any, count: Any, context: int, *, per_token: bool) -> tuple[Any, ...]:
    """Return a loss without a gradient of its own, of as many tokens as this rank's part of the loss has."""
    from megatron.core import __version__

    # Before 0.13 a loss function adds the tokens up over context parallel ranks by itself.
    tokens = count.int() * (context if __version__.startswith("0.12.") else 1)
    loss = out.sum() * 0
    return (loss, tokens, {}) if per_token else (loss, {})


def _of_one_process(weight: Any, tokens: Any, kind: str, lengths: tuple[int, ...]) -> Any:
    """Return the gradient of the mean loss of all micro-batches, from plain arithmetic in float64.

    A micro-batch weighs as much as it has tokens.
    """
    import torch

    weight = weight.clone().requires_grad_()
    losses = []
    for batch, length in zip(tokens.flatten(0, 1), lengths * len(tokens), strict=True):
        logits = batch[:length] @ weight.T  # tokens, sequences, experts
        if kind == "z_loss":
            losses.append(length * logits.logsumexp(-1).square().mean())
            continue
        parts = logits.unbind(1) if kind == "seq_aux_loss" else (logits.flatten(0, 1),)
        for part in parts:
            chosen = torch.zeros_like(part).scatter(1, part.topk(CHOSEN, dim=1).indices, 1.0)
            share = chosen.mean(0) / CHOSEN
            loss = EXPERTS * (share * part.softmax(-1).mean(0)).sum()
            losses.append(length * loss / len(parts))
    (COEFFICIENT * torch.stack(losses).sum() / (sum(lengths) * len(tokens))).backward()
    return weight.grad


def _model(kind: str, *, per_token: bool) -> Any:
    """Return a model that is a router."""
    from megatron.core import parallel_state
    from megatron.core.enums import ModelType
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.module import MegatronModule
    from megatron.core.transformer.moe import moe_utils
    from megatron.core.transformer.moe.router import TopKRouter

    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None  # some releases forget to define it without Transformer Engine
    balanced = kind != "z_loss"
    config = TransformerConfig(
        num_layers=1,
        hidden_size=HIDDEN,
        num_attention_heads=2,
        num_moe_experts=EXPERTS,
        moe_router_topk=CHOSEN,
        moe_router_load_balancing_type=kind if balanced else "none",
        moe_aux_loss_coeff=COEFFICIENT if balanced else 0.0,
        moe_z_loss_coeff=None if balanced else COEFFICIENT,
        moe_token_dispatcher_type="alltoall",  # noqa: S106 -- no password
        tensor_model_parallel_size=parallel_state.get_tensor_model_parallel_world_size(),
        context_parallel_size=parallel_state.get_context_parallel_world_size(),
        expert_model_parallel_size=parallel_state.get_expert_model_parallel_world_size(),
        sequence_parallel=parallel_state.get_tensor_model_parallel_world_size() > 1,
        calculate_per_token_loss=per_token,
        add_bias_linear=False,
        use_cpu_initialization=True,
        gradient_accumulation_fusion=False,
    )
    groups = {}
    for getter, name in (
        ("get_default_pg_collection", "pg_collection"),
        ("get_default_model_comm_pgs", "model_comm_pgs"),
    ):
        if hasattr(moe_utils, getter):
            groups = {name: getattr(moe_utils, getter)()}
            break

    class Model(MegatronModule):
        def __init__(self) -> None:
            super().__init__(config)
            self.router = TopKRouter(config, **groups)
            self.router.set_layer_number(1)
            self.model_type = ModelType.encoder_or_decoder

        def forward(self, hidden: Any, mask: Any) -> Any:
            return (self.router(hidden) if mask is None else self.router(hidden, mask))[0]

        def set_input_tensor(self, _tensor: object) -> None:
            pass

    return Model()
