"""What takes the place of miles' whitening, and what brings every rank to its collective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from types import ModuleType
from typing import Any

#: While advantages are normalised: whether this rank has entered the collective.
_entered: ContextVar[bool] = ContextVar("overlay_miles_whitened", default=False)


def make_whiten(_original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Replace the whitening by its name among the advantages: other groups, and sums in float64."""
    from miles.utils.ft_utils.process_group_utils import GeneralPGUtil
    from torch.distributed import ReduceOp

    from overlay.patches._whitening import whitened
    from overlay.patches.miles.whiten_over_cp.effect import EFFECT

    def distributed_masked_whiten(
        values: Any, mask: Any, process_group: Any = None, shift_mean: bool = True, epsilon: float = 1e-8
    ) -> Any:
        """Return the values whitened. The group is ignored: it is the one without context parallelism."""
        _entered.set(True)
        groups = module.get_parallel_state().effective_dp_cp.groups_inner_to_outer

        def all_reduce(sums: Any) -> None:
            # One group; two with replicas that tolerate faults, of which each has all the samples' parts.
            for group in groups:
                GeneralPGUtil.create(group).all_reduce(sums, group, op=ReduceOp.SUM)

        cp = module.get_parallel_state().cp
        place = int(cp.rank), int(cp.size)
        return whitened(values, mask, all_reduce, place, EFFECT, shift_mean=shift_mean, epsilon=epsilon)

    return distributed_masked_whiten


def make_normalize(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Wrap the normalisation: every rank enters the collective, whether or not it has a token."""
    import torch

    from overlay.patches.miles.whiten_over_cp.effect import EFFECT

    def normalize_advantages(
        args: Any,
        advantages: list[Any],
        loss_masks: list[Any],
        total_lengths: list[int],
        response_lengths: list[int],
        max_seq_lens: Sequence[int] | None = None,
    ) -> Any:
        token = _entered.set(False)
        try:
            result = original(
                args, advantages, loss_masks, total_lengths, response_lengths, max_seq_lens=max_seq_lens
            )
            if not _entered.get():
                EFFECT.empty += 1
                none = torch.cat(advantages)
                module.distributed_masked_whiten(none, torch.ones_like(none))
            return result
        finally:
            _entered.reset(token)

    return normalize_advantages
