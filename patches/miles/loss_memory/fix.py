"""What takes the place of miles' log-probabilities and of its loss function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from overlay.patches._packed_loss.attachment import true_arguments, unattached
from overlay.patches._packed_loss.compute import make_compute

Lists = dict[str, list[Any]]


class _AsSlime:
    """miles' module of logits, with the names by which slime's loss is asked."""

    def __init__(self, module: ModuleType) -> None:
        """Remember the module, in which names are looked up when they are asked for."""
        self.module = module
        self.mpu = self

    def get_responses(self, logits: Any, **given: Any) -> Any:
        """Yield the rows of each response and their tokens."""
        return self.module.get_responses(logits, **given)

    def slice_log_prob_with_cp(self, values: Any, total_length: int, response_length: int) -> Any:
        """Return this rank's slices of the values of a packed response."""
        from miles.backends.training_utils.cp_utils import slice_log_prob_with_cp

        return slice_log_prob_with_cp(values, total_length, response_length, "thd", None)

    def get_tensor_model_parallel_group(self) -> Any:
        return self.module.get_parallel_state().tp.group

    def get_context_parallel_group(self) -> Any:
        return self.module.get_parallel_state().cp.group

    def get_context_parallel_rank(self) -> int:
        return int(self.module.get_parallel_state().cp.rank)

    def get_context_parallel_world_size(self) -> int:
        return int(self.module.get_parallel_state().cp.size)


def make_log_probs(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build `get_log_probs_and_entropy`."""
    from overlay.patches.miles.loss_memory.effect import EFFECT

    compute = make_compute(_AsSlime(module), EFFECT)

    def get_log_probs_and_entropy(
        logits: Any,
        *,
        args: Any,
        unconcat_tokens: Sequence[Any],
        total_lengths: Sequence[int],
        response_lengths: Sequence[int],
        with_entropy: bool = False,
        entropy_requires_grad: bool = True,
        non_loss_data: bool = True,
        max_seq_lens: Sequence[int] | None = None,
    ) -> Lists:
        if not non_loss_data or not _ours(args, logits):
            theirs: Lists = original(
                logits,
                args=true_arguments(args),
                unconcat_tokens=unconcat_tokens,
                total_lengths=total_lengths,
                response_lengths=response_lengths,
                with_entropy=with_entropy,
                entropy_requires_grad=entropy_requires_grad,
                non_loss_data=non_loss_data,
                max_seq_lens=max_seq_lens,
            )
            return theirs
        more = {"max_seq_lens": max_seq_lens}
        lists = compute(logits, args, with_entropy, unconcat_tokens, total_lengths, response_lengths, **more)
        if with_entropy and not entropy_requires_grad:
            lists["entropy"] = [value.detach() for value in lists["entropy"]]
        return lists

    return get_log_probs_and_entropy


def make_loss(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build `loss_function`, without the zero that miles attaches to all logits under allgather CP."""

    def loss_function(
        args: Any,
        batch: Any,
        num_microbatches: int,
        logits: Any,
        apply_megatron_loss_scaling: bool = False,
        num_rollouts: int | None = None,
    ) -> Any:
        given = unattached(args) if _ours(args, logits) else args
        return original(given, batch, num_microbatches, logits, apply_megatron_loss_scaling, num_rollouts)

    return loss_function


def _ours(args: Any, logits: Any) -> bool:
    """Return whether log-probabilities are computed here. It depends on settings alone: all ranks agree."""
    import torch

    # A temperature that is no divisor is one that miles leaves alone.
    return logits.dtype == torch.float32 and not args.true_on_policy_mode and args.rollout_temperature > 0
