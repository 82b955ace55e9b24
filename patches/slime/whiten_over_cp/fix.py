"""What takes the place of slime's whitening, and what brings every rank to its collective."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from types import ModuleType
from typing import Any

#: While advantages are computed: whether this rank has entered the collective.
_entered: ContextVar[bool] = ContextVar("overlay_slime_whitened", default=False)


def make_whiten(_original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Replace the whitening by its name in the loss: another group, and sums in float64."""
    import torch.distributed as dist

    from overlay.patches._whitening import whitened
    from overlay.patches.slime.whiten_over_cp.effect import EFFECT

    def distributed_masked_whiten(
        values: Any, mask: Any, process_group: Any = None, shift_mean: bool = True, epsilon: float = 1e-8
    ) -> Any:
        """Return the values whitened. The group is ignored: it is the one without context parallelism."""
        _entered.set(True)
        group = module.mpu.get_data_parallel_group(with_context_parallel=True)

        def all_reduce(sums: Any) -> None:
            dist.all_reduce(sums, group=group)

        place = module.mpu.get_context_parallel_rank(), module.mpu.get_context_parallel_world_size()
        return whitened(values, mask, all_reduce, place, EFFECT, shift_mean=shift_mean, epsilon=epsilon)

    return distributed_masked_whiten


def make_advantages(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Wrap the computation of advantages: every rank of the last stage enters the collective."""
    import torch

    from overlay.patches._slime_advantages import compute
    from overlay.patches.slime.whiten_over_cp.effect import EFFECT

    def compute_advantages_and_returns(args: Any, rollout_data: Any) -> Any:
        token = _entered.set(False)
        before = rollout_data.get("advantages")
        try:
            result = compute(original, module, args, rollout_data)
            advantages = rollout_data.get("advantages")
            computed = advantages is not None and advantages is not before
            if computed and args.normalize_advantages and not _entered.get():
                EFFECT.empty += 1
                none = torch.cat(advantages)
                module.distributed_masked_whiten(none, torch.ones_like(none))
            return result
        finally:
            _entered.reset(token)

    return compute_advantages_and_returns
