"""`slime.whiten-over-cp`: advantages are whitened over all ranks that have a part of them."""

from functools import wraps
from typing import Any

import overlay.patches._whitening as whitening
from overlay.compat.projects import SLIME
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches._slime_advantages import compute

_LOSS = "slime.backends.megatron_utils.loss"
EFFECT = whitening.effect_of(__name__)


def make_advantages(original: Any, module: Any) -> Any:
    """Wrap the computation of advantages: its whitening has another group, and sums in float64."""
    import torch.distributed as dist

    mpu = module.mpu

    def all_reduce(sums: Any) -> None:
        dist.all_reduce(sums, group=mpu.get_data_parallel_group(with_context_parallel=True))

    run = whitening.over_all(original, module, all_reduce, EFFECT)

    def compute_advantages_and_returns(args: Any, rollout_data: Any) -> Any:
        before = rollout_data.get("advantages")

        def normalised() -> Any:
            found = rollout_data.get("advantages")
            return found if args.normalize_advantages and found is not before else None

        return run(lambda function: compute(function, module, args, rollout_data), normalised)

    return wraps(original)(compute_advantages_and_returns)


_REPLACED = replaced(f"{_LOSS}:compute_advantages_and_returns", make_advantages)
_ON = (f"{_LOSS}:distributed_masked_whiten", "slime.utils.distributed_utils:distributed_masked_whiten")

PATCH = Patch(
    id="slime.whiten-over-cp",
    summary="Advantages normalised with one mean and deviation for all ranks",
    why="With --normalize-advantages and context parallelism, each rank of slime whitens its slices with the "
    "statistics of the same slices over the data parallel ranks: tokens of one sample get different means "
    "and deviations, and a rank whose slices have no response token leaves the others waiting until they "
    "time out. With the patch all ranks that have a part of the batch are asked together, as on slime's "
    "main, and the sums are in float64: in float32, also on main, they lose the variance of large "
    "advantages.",
    changes=("numbers", "hangs"),
    met="--normalize-advantages with a context parallel size above 1, or with advantages far from 0.",
    upstream=("THUDM/slime#2235",),
    evidence="slime's commit dd7f037 (after 0.3.1) asks the same group, still in float32; the result is "
    "float64's.",
    targets=one_target(
        SLIME,
        variant("0.2", _REPLACED, *_ON),
        variant("after 0.3.1", _REPLACED, *_ON),
    ),
)
