"""Logits in, and for each sample its log-probabilities and entropies out: slime's layouts, and its fork's."""

from collections.abc import Callable, Sequence
from typing import Any

from overlay.effect import Figure
from overlay.effect import effect as make_effect
from overlay.patches._packed_loss.attachment import true_arguments
from overlay.patches._packed_loss.response_rows import response_rows, spread_over_zigzag
from overlay.patches._packed_loss.row_blocks import Rows
from overlay.patches._packed_loss.vocab_parallel import make_log_prob_entropy

#: By name, a tensor [R] for each sample.
Lists = dict[str, list[Any]]
#: Attribute of slime's `args` (set in the file of --custom-config-path): the gradient overwrites the logits.
IN_PLACE = "overlay_loss_in_place"


def effect_of(place: str, upstream: str) -> Any:
    """Return what a patch of an upstream's loss counts; `place` is as for `overlay.effect`."""
    kept = f"the logits of response rows, most at once, of which {upstream} keeps a copy"
    return make_effect(
        place,
        "micro-batch",
        Figure(name="kept_out", says=kept, unit="bytes", combine="max"),
        did="took the loss of",
        always=True,
        then="at least {kept_out} less at the peak",
    )


def make_compute(module: Any, effect: Any) -> Callable[..., Lists]:
    """Build what all releases share: logits [1, T, V] in, `log_probs` and `entropy` out.

    `module` is slime's `loss`, or what has its `get_responses`, `slice_log_prob_with_cp` and `mpu`.
    """
    import torch

    log_prob_entropy = make_log_prob_entropy()

    def compute(
        logits: Any,
        args: Any,
        with_entropy: bool,
        *,
        total_lengths: Sequence[int],
        response_lengths: Sequence[int],
        **batch: Any,
    ) -> Lists:
        args = true_arguments(args)
        mpu = module.mpu
        contiguous = is_contiguous(args, mpu)
        lengths = {"total_lengths": total_lengths, "response_lengths": response_lengths}
        runs, targets = response_rows(logits, args, module, **lengths, **batch)
        rows = Rows(
            [span for sample in runs for span in sample],
            group=mpu.get_tensor_model_parallel_group(),
            temperature=getattr(args, "rollout_temperature", 1.0),
            block_rows=getattr(args, "log_probs_chunk_size", -1),
            with_entropy=with_entropy,
            # With a coefficient of zero it is most likely a metric: its gradient tells.
            entropy_gradient=getattr(args, "entropy_coef", None) != 0,
            in_place=getattr(args, IN_PLACE, False),
        )
        if logits.requires_grad and torch.is_grad_enabled():
            effect.changed += 1
            size = sum(stop - start for start, stop in rows.spans) * logits.size(-1) * logits.element_size()
            effect.kept_out = max(effect.kept_out, size)
        log_prob, entropy = log_prob_entropy(logits, torch.cat(targets), rows)
        values = [log_prob, entropy] if with_entropy else [log_prob]
        if contiguous:
            first = mpu.get_context_parallel_rank() * logits.size(1)
            lists = spread_over_zigzag(values, runs, first, module, **lengths)
        else:
            counts = [len(tokens) for tokens in targets]
            lists = [list(value.split(counts)) for value in values]
        return dict(zip(("log_probs", "entropy"), lists, strict=False))

    return compute


def is_contiguous(args: Any, mpu: Any) -> bool:
    """Return whether each rank has a run of the packed tokens (`allgather_cp`), and not zigzag slices.

    Raises `ValueError` if so and sequences are not packed: by settings alone, so on all ranks.
    """
    if not getattr(args, "allgather_cp", False) or mpu.get_context_parallel_world_size() == 1:
        return False
    if getattr(args, "qkv_format", "thd") != "thd":
        raise ValueError(
            f"allgather_cp splits packed sequences, and qkv_format is {args.qkv_format!r}: the rows of a "
            "response could not be told. Set --qkv-format thd, or do without --allgather-cp."
        )
    return True
