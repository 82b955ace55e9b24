"""What takes the place of slime's log-probabilities, of its loss function and of the values of a critic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from overlay.patches._packed_loss.attachment import true_arguments, unattached
from overlay.patches._packed_loss.compute import is_contiguous, make_compute

Lists = dict[str, list[Any]]


def make_packed(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build `get_log_probs_and_entropy` of slime 0.2.0 and 0.2.1: packed sequences only."""
    return _packed(module, _lists)


def make_packed_pair(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build `get_log_probs_and_entropy` of commits before slime 0.3.1: packed sequences only, and a pair."""
    return _packed(module, _pair)


def make_padded(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build `get_log_probs_and_entropy` of slime 0.2.2: sequences may be padded to `max_seq_lens`."""
    return _padded(module, _lists)


def make_paired(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build `get_log_probs_and_entropy` of slime 0.2.3 to 0.3.0, which returns a pair."""
    return _padded(module, _pair)


def _lists(_logits: Any, lists: Lists) -> Lists:
    return lists


def _pair(logits: Any, lists: Lists) -> tuple[Any, Lists]:
    return logits.new_empty(0), lists


def _packed(module: ModuleType, answer: Callable[[Any, Lists], Any]) -> Callable[..., Any]:
    """Build it for packed sequences; `answer` makes of the lists what is returned."""
    from overlay.patches.slime.loss_memory.effect import EFFECT

    compute = make_compute(module, EFFECT)

    def get_log_probs_and_entropy(
        logits: Any,
        *,
        args: Any,
        unconcat_tokens: Sequence[Any],
        total_lengths: Sequence[int],
        response_lengths: Sequence[int],
        with_entropy: bool = False,
        non_loss_data: bool = True,
    ) -> Any:
        _check(logits, non_loss_data=non_loss_data)
        lists = compute(logits, args, with_entropy, unconcat_tokens, total_lengths, response_lengths)
        return answer(logits, lists)

    return get_log_probs_and_entropy


def _padded(module: ModuleType, answer: Callable[[Any, Lists], Any]) -> Callable[..., Any]:
    """Build it for sequences that may be padded to `max_seq_lens`."""
    from overlay.patches.slime.loss_memory.effect import EFFECT

    compute = make_compute(module, EFFECT)

    def get_log_probs_and_entropy(
        logits: Any,
        *,
        args: Any,
        unconcat_tokens: Sequence[Any],
        total_lengths: Sequence[int],
        response_lengths: Sequence[int],
        with_entropy: bool = False,
        non_loss_data: bool = True,
        max_seq_lens: Sequence[int] | None = None,
    ) -> Any:
        _check(logits, non_loss_data=non_loss_data)
        more = {"max_seq_lens": max_seq_lens}
        lists = compute(logits, args, with_entropy, unconcat_tokens, total_lengths, response_lengths, **more)
        return answer(logits, lists)

    return get_log_probs_and_entropy


def make_with_top_p(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build `get_log_probs_and_entropy` of slime 0.3.1: with a rollout's top-p sets, it is upstream's own."""
    packed = make_packed(original, module)

    def get_log_probs_and_entropy(
        logits: Any,
        *,
        args: Any,
        unconcat_tokens: Sequence[Any],
        total_lengths: Sequence[int],
        response_lengths: Sequence[int],
        with_entropy: bool = False,
        non_loss_data: bool = True,
        top_p_token_ids: Sequence[Any] | None = None,
        top_p_token_offsets: Sequence[Any] | None = None,
    ) -> tuple[Any, Lists]:
        given: dict[str, Any] = {
            "args": true_arguments(args),
            "unconcat_tokens": unconcat_tokens,
            "total_lengths": total_lengths,
            "response_lengths": response_lengths,
            "with_entropy": with_entropy,
            "non_loss_data": non_loss_data,
        }
        if top_p_token_ids is None or top_p_token_offsets is None:
            return logits.new_empty(0), packed(logits, **given)
        sets = {"top_p_token_ids": top_p_token_ids, "top_p_token_offsets": top_p_token_offsets}
        pair: tuple[Any, Lists] = original(logits, **given, **sets)
        return pair

    return get_log_probs_and_entropy


def _check(logits: Any, *, non_loss_data: bool) -> None:
    """Refuse what upstream refuses; shapes are refused by `get_responses`."""
    import torch

    if not non_loss_data or logits.dtype != torch.float32:
        msg = f"logits must be float32, and non_loss_data true: {logits.dtype}, {non_loss_data}"
        raise AssertionError(msg)


def make_values(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Wrap `get_values` of slime 0.2.3 to 0.3.0: the critic's values have no other rows than log-probs."""

    def get_values(
        logits: Any,
        *,
        args: Any,
        unconcat_tokens: Sequence[Any],
        total_lengths: Sequence[int],
        response_lengths: Sequence[int],
        with_entropy: bool = False,
        non_loss_data: bool = True,
        max_seq_lens: Sequence[int] | None = None,
    ) -> Any:
        is_contiguous(args, module.mpu)
        return original(
            logits,
            args=args,
            unconcat_tokens=unconcat_tokens,
            total_lengths=total_lengths,
            response_lengths=response_lengths,
            with_entropy=with_entropy,
            non_loss_data=non_loss_data,
            max_seq_lens=max_seq_lens,
        )

    return get_values


def make_loss(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build `loss_function` of slime 0.2.3 and 0.2.4."""

    def loss_function(args: Any, batch: Any, num_microbatches: int, logits: Any) -> Any:
        return original(unattached(args), batch, num_microbatches, logits)

    return loss_function


def make_step_loss(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build `loss_function` of slime 0.3.0, which is told the number of samples of a step."""

    def loss_function(
        args: Any, batch: Any, num_microbatches: int, step_global_batch_size: int, logits: Any
    ) -> Any:
        return original(unattached(args), batch, num_microbatches, step_global_batch_size, logits)

    return loss_function


def make_step_loss_with_top_p(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build `loss_function` of slime 0.3.1: with top-p sets the log-probabilities are upstream's own."""
    unattached = make_step_loss(original, module)

    def loss_function(
        args: Any, batch: Any, num_microbatches: int, step_global_batch_size: int, logits: Any
    ) -> Any:
        call = unattached if args.rollout_top_p == 1 else original
        return call(args, batch, num_microbatches, step_global_batch_size, logits)

    return loss_function
