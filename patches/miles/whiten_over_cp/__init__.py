"""`miles.whiten-over-cp`: advantages are whitened over all ranks that have a part of them."""

from functools import wraps
from typing import Any

import overlay.patches._whitening as whitening
from overlay.compat.projects import MILES
from overlay.patch import Patch, one_target, replaced, variant

_LOSS = "miles.backends.training_utils.loss"
_ADVANTAGES = "miles.backends.training_utils.loss_hub.advantages"
_PARALLEL = "miles.backends.training_utils.parallel"
_STATE = f"{_PARALLEL}:ParallelState"
_GROUPS = "miles.utils.ft_utils.process_group_utils"
EFFECT = whitening.effect_of(__name__)


def make_normalize(original: Any, module: Any) -> Any:
    """Wrap the normalisation: its whitening has other groups, and sums in float64."""
    from miles.utils.ft_utils.process_group_utils import GeneralPGUtil
    from torch.distributed import ReduceOp

    def all_reduce(sums: Any) -> None:
        # One group; two with replicas that tolerate faults, of which each has all the samples' parts.
        for group in module.get_parallel_state().effective_dp_cp.groups_inner_to_outer:
            GeneralPGUtil.create(group).all_reduce(sums, group, op=ReduceOp.SUM)

    run = whitening.over_all(original, module, all_reduce, EFFECT)

    def normalize_advantages(args: Any, advantages: Any, *given: Any, **named: Any) -> Any:
        return run(lambda function: function(args, advantages, *given, **named), lambda: advantages)

    return wraps(original)(normalize_advantages)


def make_advantages(original: Any, module: Any) -> Any:
    """Wrap the computation of advantages of 0.0.2, which normalises them itself, over groups of torch."""
    import torch.distributed as dist

    def all_reduce(sums: Any) -> None:
        dist.all_reduce(sums, group=module.get_parallel_state().intra_dp_cp.group)

    run = whitening.over_all(original, module, all_reduce, EFFECT)

    def compute_advantages_and_returns(args: Any, rollout_data: Any) -> Any:
        before = rollout_data.get("advantages")

        def normalised() -> Any:
            found = rollout_data.get("advantages")
            return found if args.normalize_advantages and found is not before else None

        return run(lambda function: function(args, rollout_data), normalised)

    return wraps(original)(compute_advantages_and_returns)


PATCH = Patch(
    id="miles.whiten-over-cp",
    summary="Advantages normalised with one mean and deviation for all ranks",
    why="With --normalize-advantages and context parallelism, each rank of miles whitens its slices with the "
    "statistics of the same slices over the data parallel ranks: tokens of one sample get different means "
    "and deviations, and a rank whose slices have no response token leaves the others waiting until they "
    "time out. With the patch all ranks that have a part of the batch are asked together.",
    changes=("numbers", "hangs"),
    met="--normalize-advantages with a context parallel size above 1, or with advantages far from 0.",
    upstream=("THUDM/slime#2235",),
    evidence="slime's commit dd7f037 (#2235) asks the same group; the result is float64's.",
    targets=one_target(
        MILES,
        variant(
            "0.0.2",
            replaced(f"{_LOSS}:compute_advantages_and_returns", make_advantages),
            f"{_LOSS}:distributed_masked_whiten",
            "miles.utils.distributed_utils:distributed_masked_whiten",
            _STATE,
            f"{_PARALLEL}:GroupInfo",
        ),
        variant(
            "0.1",
            replaced(f"{_ADVANTAGES}:normalize_advantages", make_normalize),
            f"{_ADVANTAGES}:distributed_masked_whiten",
            "miles.utils.distributed_utils:distributed_masked_whiten",
            f"{_STATE}.effective_dp_cp",
            f"{_STATE}._dp_mode",
            f"{_GROUPS}:GroupsInfo",
            _STATE,
            f"{_GROUPS}:GroupInfo",
        ),
    ),
)
