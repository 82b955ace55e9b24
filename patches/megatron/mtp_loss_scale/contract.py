"""Context parallel ranks get the gradient of multi-token prediction, and the loss, of one process."""

import functools
from typing import Any

from overlay.compat.contracts import megatron_parts as parts
from overlay.compat.contracts.rank_cases import Cases, RankCases, Row, within

#: Tokens of a sequence, sequences of a micro-batch, micro-batches, tokens predicted beside the next one.
TOKENS, SEQUENCES, BATCHES, DEPTHS = 8, 2, 2, 2
HIDDEN, VOCABULARY = 8, 12
#: The tokens of a sequence that count. Of two ranks, the first has tokens 0, 1, 6 and 7.
MASKS: dict[str, tuple[int, ...]] = {
    "all": tuple(range(TOKENS)),
    "a response": (4, 5, 6, 7),
    "targets on one rank": (2, 3, 4, 5),
    "none left on one rank": (0, 1),
}
#: A mask for a model that is given tokens alone, and makes labels of them where it knows how.
UNLABELLED = "a response without labels"
#: What a case's name ends in whose sequences lie in one row, and are held to those that do not.
PACKED = ", packed"

#: By mask and way to divide, what one process found.
_whole: dict[tuple[str, bool], tuple[Any, Any]] = {}


def cases(world: int) -> Cases:
    """Return a case for each mask and way to divide: first on one process, which is what all are held to."""
    from megatron.core.transformer.multi_token_prediction import roll_tensor

    # Where this Megatron's losses know these.
    packed = [name + PACKED for name in MASKS] if parts.knows(roll_tensor, "packed_seq_params") else []
    return [
        (
            f"{name}, {'per token' if per_token else 'per batch'}{of_one}",
            {"context": context},
            functools.partial(_step, name, context, per_token=per_token),
        )
        for context, of_one in ((1, ", one process"), (world, ""))
        for per_token in (False, True)
        for name in (*MASKS, UNLABELLED, *packed)
    ]


def _step(name: str, context: int, *, per_token: bool) -> Row:
    """Take a step, and return how far gradient and reported losses are from those of one process."""
    import torch
    import torch.distributed as dist
    from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper

    draw = parts.generator()
    model = _model(context, draw, per_token=per_token)
    name, packed, _ = name.partition(PACKED)
    unlabelled = name == UNLABELLED and _makes_labels()
    parallel = parts.data_parallel(model)
    tokens = torch.randint(1, VOCABULARY, (BATCHES, SEQUENCES, TOKENS + 1), generator=draw)
    counted = MASKS["a response" if name == UNLABELLED else name]
    mask = torch.zeros(SEQUENCES, TOKENS)
    mask[:, list(counted)] = 1
    mask[0, counted[0]] = 0  # sequences that differ
    # The models of slime's images take the labels of these losses apart.
    of_slime = parts.knows(model.forward, "mtp_kwargs")
    # Data parallel ranks have the same data: together they are one process.
    mine = _part(context, dist.get_rank())
    MTPLossLoggingHelper.tracker.clear()

    def forward_step(data: Any, chunk: Any) -> Any:
        batch = next(data)
        kept = mask[:, mine]
        labels = None if unlabelled else batch[:, 1:][:, mine]
        rows: tuple[Any, ...] = batch[:, :-1][:, mine], mine.expand(SEQUENCES, -1), labels, kept.clone()
        if packed:
            rows = tuple(one.reshape(1, -1) for one in rows)
        ids, positions, labels, counting = rows
        own = {"mtp_kwargs": {"mtp_labels": labels}} if of_slime else {}
        out = chunk(ids, positions, None, labels=labels, loss_mask=counting,
                    packed_seq_params=_bounds() if packed else None, **own)  # fmt: skip
        loss = out.sum() * 0
        return loss, lambda _: (loss, kept.sum().int(), {}) if per_token else (loss, {})

    parts.run_schedule(
        [parallel], forward_step, iter(tokens), batches=BATCHES, tokens=TOKENS, sequences=SEQUENCES
    )
    found = torch.cat([one.main_grad.double().flatten() for one in model.parameters()])
    # What is logged is averaged over data and context parallel ranks, which are all.
    tracker = MTPLossLoggingHelper.tracker
    reported = tracker["loss_values" if "loss_values" in tracker else "values"].double()
    dist.all_reduce(reported)
    reported /= dist.get_world_size()
    if context == 1 and not packed:
        _whole[name, per_token] = found, reported
    right, logged = _whole[name, per_token]
    return {
        # In slime's models no token may be left.
        "error": float((found - right).abs().max()) / (float(right.abs().max()) or 1.0),
        "reported": float((reported - logged).abs().max() / logged.abs().max().clamp(min=1)),
    }


def _bounds() -> Any:
    """Return where each sequence of a row begins."""
    import torch
    from megatron.core.packed_seq_params import PackedSeqParams

    starts = torch.arange(SEQUENCES + 1, dtype=torch.int32) * TOKENS
    return PackedSeqParams(
        qkv_format="thd", cu_seqlens_q=starts, cu_seqlens_kv=starts, max_seqlen_q=TOKENS, max_seqlen_kv=TOKENS
    )


def _part(context: int, rank: int) -> Any:
    """Return the positions that a rank has: one chunk from the front and one from the back."""
    import torch

    chunks = torch.arange(TOKENS).chunk(2 * context)
    rank %= context
    return torch.cat([chunks[rank], chunks[-1 - rank]])


def _makes_labels() -> bool:
    """Return whether this Megatron computes the losses without labels."""
    from megatron.core.transformer import multi_token_prediction

    losses = getattr(multi_token_prediction, "process_mtp_loss", None)
    return losses is not None and parts.knows(losses, "input_ids")


def _model(context: int, draw: Any, *, per_token: bool) -> Any:
    """Return a model with drawn weights."""
    import torch

    config = parts.small_transformer(
        hidden_size=HIDDEN, num_attention_heads=1, context_parallel_size=context,
        calculate_per_token_loss=per_token, mtp_num_layers=DEPTHS, mtp_loss_scaling_factor=0.3,
    )  # fmt: skip
    model = parts.predicting_further(config, TOKENS, VOCABULARY)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw, dtype=torch.float64))
    return model


CASES = RankCases(
    "megatron.mtp-loss-scale",
    "gradient or report is not that of one process",
    within(1e-4),  # relative, of gradients and losses in float32
    te=True,  # main builds none without
)
CONTRACT = CASES.contract()
