"""Auxiliary losses give a router the gradient of one process, and report its losses, in every layout."""

import functools
import itertools
from collections.abc import Iterable
from typing import Any

from overlay.compat.contracts import megatron_parts as parts
from overlay.compat.contracts.rank_cases import Cases, RankCases, Row

#: Relative, of a gradient and of a loss in float32.
TOLERANCE = 1e-4
#: Sequences of a micro-batch, tokens of a sequence, sizes of the model.
SEQUENCES, TOKENS, HIDDEN, EXPERTS, CHOSEN = 2, 8, 6, 4, 2
COEFFICIENT = 0.1
#: The layouts of so many ranks.
LAYOUTS: dict[int, dict[str, dict[str, int]]] = {
    2: {"tp": {"tensor": 2}, "cp": {"context": 2}, "ep": {"expert": 2}, "dp": {"tensor": 1}},
    4: {
        "tp and cp": {"tensor": 2, "context": 2},
        "tp and ep": {"tensor": 2, "expert": 2, "expert_tensor": 1},
        "cp and ep": {"context": 2, "expert": 2},
        "tp, cp and ep": {"tensor": 2, "context": 2, "expert": 2, "expert_tensor": 1},
    },
}
#: By loss, the name under which it is reported.
KINDS = {"aux_loss": "load_balancing_loss", "seq_aux_loss": "seq_load_balancing_loss", "z_loss": "z_loss"}
#: One over the tokens of all data parallel ranks, of which each has its part.
GLOBAL = {"global_aux_loss": "global_load_balancing_loss"}
#: Of each micro-batch of a step, the tokens of a sequence that are no padding: no rank of four is without.
STEPS = {
    "": (TOKENS,) * 3,
    ", one micro-batch": (TOKENS,),
    ", padded": (TOKENS, TOKENS - 1, TOKENS - 1),
}


def cases(world: int, kinds: Iterable[str] = KINDS) -> Cases:
    """Return a case for each layout, loss, way to divide the gradient, and step."""
    from megatron.core.transformer.moe.router import TopKRouter

    # Padded ranks have different numbers of tokens: without per-token loss they divide by their own.
    pads = parts.knows(TopKRouter.forward, "padding_mask")
    return [
        (
            f"{layout}, {kind}, {'per token' if per_token else 'per batch'}{ending}",
            sizes,
            functools.partial(_step, kind, lengths, per_token=per_token),
        )
        for (layout, sizes), (ending, lengths), per_token, kind in itertools.product(
            LAYOUTS[world].items(), STEPS.items(), (True, False), kinds
        )
        if min(lengths) == TOKENS or (per_token and pads)
    ]


def _step(kind: str, lengths: tuple[int, ...], *, per_token: bool) -> Row:
    """Take a step, and return how far gradient and report are from those of one process, relatively.

    `scale` is how many times as large as that the gradient is, in its direction.
    """
    import torch
    import torch.distributed as dist

    draw, rank, layout = parts.generator(), dist.get_rank(), parts.layout()
    weight = torch.randn(EXPERTS, HIDDEN, generator=draw, dtype=torch.float64)
    context, tensor = layout["context_parallel_size"], layout["tensor_model_parallel_size"]
    shards = tensor * context
    batches, padded = len(lengths), min(lengths) < TOKENS
    shape = (dist.get_world_size() // shards, batches, TOKENS, SEQUENCES, HIDDEN)
    tokens = torch.randn(shape, generator=draw, dtype=torch.float64)
    if padded:
        # Larger where the padding is, so that by no draw a mean of ranks' means is one over tokens.
        tokens[:, :, TOKENS // 2 :] *= 2
    right, logged = _of_one_process(weight, tokens, kind, lengths)

    model = _model(kind, layout, per_token=per_token)
    with torch.no_grad():
        model.router.weight.copy_(weight)
    parallel = parts.data_parallel(model)
    # Tensor and context parallel ranks have their tokens of each sequence, data parallel ranks their own.
    mine = tokens[rank // shards].chunk(shards, dim=1)[rank % shards]
    padding = torch.stack([torch.arange(TOKENS) >= length for length in lengths])
    # Early routers take no mask.
    masks = [
        (mask[:, None].expand(-1, SEQUENCES),) if padded else ()
        for mask in padding.chunk(shards, dim=1)[rank % shards]
    ]
    # Of the loss, tensor parallel ranks have all that their context parallel rank has.
    counts = (~padding).chunk(context, dim=1)[rank % shards // tensor].sum(1) * SEQUENCES

    def forward_step(data: Any, chunk: Any) -> Any:
        batch, mask, count = next(data)
        return chunk(batch.float(), *mask), lambda out: _loss(out, count, context, per_token=per_token)

    _forget()
    data = iter(zip(mine, masks, counts, strict=True))
    parts.run_schedule([parallel], forward_step, data, batches=batches, tokens=TOKENS, sequences=SEQUENCES)
    found = model.router.weight.main_grad.double()
    return {
        "error": parts.relative_error(found, right),
        "scale": float((found * right).sum() / right.square().sum()),
        "reported": abs(_reported((KINDS | GLOBAL)[kind], batches) / logged - 1),
    }


def _forget() -> None:
    """Forget what losses have been told, and the groups of another layout."""
    from megatron.core import parallel_state
    from megatron.core.transformer.moe import moe_utils

    if hasattr(moe_utils, "get_moe_metrics_tracker"):  # from 0.18 on
        from megatron.core.transformer.moe.moe_logging import destroy_moe_metrics_tracker

        destroy_moe_metrics_tracker()
        return
    owner = moe_utils if hasattr(moe_utils, "get_moe_layer_wise_logging_tracker") else parallel_state
    owner.get_moe_layer_wise_logging_tracker().clear()


def _reported(name: str, batches: int) -> float:
    """Return what this rank writes into the log, as at the end of a step of Megatron's training loop."""
    from megatron.core.transformer.moe.moe_utils import track_moe_metrics

    written: dict[str, float] = {}

    class Writer:
        def add_scalar(self, name: str, value: Any, _step: int) -> None:
            written[name] = float(value)

    track_moe_metrics(1 / batches, 1, Writer(), num_layers=1)
    # Before 0.14 all losses that balance have one name.
    return written[name if name in written else "load_balancing_loss"]


def _loss(out: Any, count: Any, context: int, *, per_token: bool) -> tuple[Any, ...]:
    """Return a loss without a gradient of its own, of as many tokens as this rank's part of the loss has."""
    from megatron.core import __version__

    # Before 0.13 a loss function adds the tokens up over context parallel ranks by itself.
    tokens = count.int() * (context if __version__.startswith("0.12.") else 1)
    loss = out.sum() * 0
    return (loss, tokens, {}) if per_token else (loss, {})


def _of_one_process(weight: Any, tokens: Any, kind: str, lengths: tuple[int, ...]) -> tuple[Any, float]:
    """Return gradient and report of all micro-batches' losses, from plain arithmetic in float64.

    For the gradient a micro-batch weighs as much as it has tokens. The report is the mean over micro-batches.
    """
    import torch

    weight = weight.clone().requires_grad_()
    losses = []
    if kind in GLOBAL:
        tokens = torch.cat(list(tokens), dim=2)[None]  # sequences of one process
    counts = torch.zeros(EXPERTS, dtype=torch.float64)
    lengths *= len(tokens)
    for batch, length in zip(tokens.flatten(0, 1), lengths, strict=True):
        logits = batch[:length] @ weight.T  # tokens, sequences, experts
        if kind == "z_loss":
            losses.append(logits.logsumexp(-1).square().mean())
            continue
        means = []
        for part in logits.unbind(1) if kind == "seq_aux_loss" else (logits.flatten(0, 1),):
            chosen = torch.zeros_like(part).scatter(1, part.topk(CHOSEN, dim=1).indices, 1.0)
            share = chosen.mean(0) / CHOSEN
            if kind in GLOBAL:  # the mean of all micro-batches so far, which is no mean over tokens
                counts = counts + chosen.sum(0)
                share = counts / (len(losses) + 1) / len(part) / CHOSEN
            means.append(EXPERTS * (share * part.softmax(-1).mean(0)).sum())
        losses.append(torch.stack(means).mean())
    each = torch.stack(losses)
    weights = torch.tensor(lengths, dtype=torch.float64) / sum(lengths)
    (COEFFICIENT * (weights * each).sum()).backward()
    return weight.grad, float(each.mean())


def _model(kind: str, layout: dict[str, int], *, per_token: bool) -> Any:
    """Return a model that is a router."""
    balanced = kind != "z_loss"
    config = parts.small_transformer(
        hidden_size=HIDDEN,
        num_moe_experts=EXPERTS,
        moe_router_topk=CHOSEN,
        moe_router_load_balancing_type=kind if balanced else "none",
        moe_aux_loss_coeff=COEFFICIENT if balanced else 0.0,
        moe_z_loss_coeff=None if balanced else COEFFICIENT,
        moe_token_dispatcher_type="alltoall",  # noqa: S106 -- no password
        sequence_parallel=layout["tensor_model_parallel_size"] > 1,
        calculate_per_token_loss=per_token,
        add_bias_linear=False,
        **layout,
    )
    model = parts.chunk(config, lambda own, *given: own.router(*given)[0])
    model.router = parts.router(config)
    return model


def _off(row: Row) -> list[str]:
    """Return what is not that of one process: the gradient, and what is reported."""
    figures = {"error": "", "reported": ", as reported"}
    return [said for figure, said in figures.items() if not row[figure] < TOLERANCE]


CASES = RankCases(
    "megatron.moe-aux-scale",
    "the router's gradient, or what is reported, is not that of one process",
    _off,
    # A mean of ranks' means, which have different numbers of tokens.
    left="z_loss, per token, padded, as reported",
)
wrong = CASES.wrong

CONTRACT = CASES.contract()
