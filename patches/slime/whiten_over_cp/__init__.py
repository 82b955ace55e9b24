"""`slime.whiten-over-cp`: advantages are whitened over all ranks that have a part of them.

Under context parallelism a rank has some of the tokens of each sample, and slime takes statistics over the
ranks that all have the same part. The whitening is replaced by one over all of them. A rank without any token
never gets there: it enters the collective when slime is done, which has none behind it.
"""

from contextvars import ContextVar
from functools import wraps
from typing import Any

import overlay.patches._whitening as whitening
from overlay.compat.projects import SLIME
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches._slime_advantages import compute

_LOSS = "slime.backends.megatron_utils.loss"
_ADVANTAGES = f"{_LOSS}:compute_advantages_and_returns"
EFFECT = whitening.effect_of(__name__, "slime")
#: While advantages are computed: whether this rank has entered the collective.
_entered: ContextVar[bool] = ContextVar("overlay_slime_whitened", default=False)


def make_whiten(_original: Any, module: Any) -> Any:
    """Replace the whitening by its name in the loss: another group, and sums in float64."""
    import torch.distributed as dist

    def distributed_masked_whiten(
        values: Any, mask: Any, process_group: Any = None, shift_mean: bool = True, epsilon: float = 1e-8
    ) -> Any:
        """Return the values whitened. The group is ignored: it is the one without context parallelism."""
        _entered.set(True)
        group = module.mpu.get_data_parallel_group(with_context_parallel=True)

        def all_reduce(sums: Any) -> None:
            dist.all_reduce(sums, group=group)

        place = module.mpu.get_context_parallel_rank(), module.mpu.get_context_parallel_world_size()
        return whitening.whitened(
            values, mask, all_reduce, place, EFFECT, shift_mean=shift_mean, epsilon=epsilon
        )

    return distributed_masked_whiten


def make_advantages(original: Any, module: Any) -> Any:
    """Wrap the computation of advantages: every rank of the last stage enters the collective."""
    import torch

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

    return wraps(original)(compute_advantages_and_returns)


PATCH = Patch(
    id="slime.whiten-over-cp",
    revision=2,
    summary="Advantages normalised with one mean and deviation for all ranks",
    why="With --normalize-advantages and context parallelism, each rank of slime whitens its slices with the "
    "statistics of the same slices over the data parallel ranks: tokens of one sample get different means "
    "and deviations, and a rank whose slices have no response token leaves the others waiting until they "
    "time out. With the patch all ranks that have a part of the batch are asked together, and sums are taken "
    "in float64: in float32 they lose the variance of advantages that are large against it.",
    changes=("numbers", "hangs"),
    met="--normalize-advantages with a context parallel size above 1, or with advantages far from 0.",
    upstream=("THUDM/slime#2235",),
    evidence="slime's commit dd7f037 (after 0.3.1) asks the same group on every rank; the result is that of "
    "one process in float64.",
    targets=one_target(
        SLIME,
        variant(
            "0.2",
            # What the import stands for, and so what is replaced in truth.
            "slime.utils.distributed_utils:distributed_masked_whiten",
            replaced(_ADVANTAGES, make_advantages),
            replaced(f"{_LOSS}:distributed_masked_whiten", make_whiten),
        ),
    ),
)
