"""`miles.whiten-over-cp`: advantages are whitened over all ranks that have a part of them.

Under context parallelism a rank has some of the tokens of each sample, and miles asks the data parallel ranks
for statistics, which all have the same part. A rank that has no token at all asks nobody, and those that wait
for it are stuck: it enters the collective when miles is done, which has none behind it.
"""

from __future__ import annotations

from overlay.compat.projects import MILES
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches.miles.whiten_over_cp.fix import make_normalize, make_whiten

_ADVANTAGES = "miles.backends.training_utils.loss_hub.advantages"
_STATE = "miles.backends.training_utils.parallel:ParallelState"
_GROUPS = "miles.utils.ft_utils.process_group_utils"

PATCH = Patch(
    id="miles.whiten-over-cp",
    revision=2,
    summary="Advantages normalised with one mean and deviation for all ranks",
    why=(
        "With --normalize-advantages and context parallelism, miles' ranks whiten their slices of a sample "
        "each with the statistics of its own slices over the data parallel ranks: tokens of one sample get "
        "different means and deviations. A rank whose slices have no response token leaves the collective "
        "out, and the others wait for it until they time out. With the patch all ranks that have a part of "
        "the batch are asked together, whether or not they have a token, and sums are taken in float64."
    ),
    changes=("numbers", "hangs"),
    met="--normalize-advantages with a context parallel size above 1.",
    upstream=("THUDM/slime#2235",),
    evidence=(
        "slime's commit dd7f037 (#2235) asks the same group on every rank; the result is that of one "
        "process in float64."
    ),
    targets=one_target(
        MILES,
        variant(
            "0.1",
            replaced(f"{_ADVANTAGES}:normalize_advantages", make_normalize),
            replaced(f"{_ADVANTAGES}:distributed_masked_whiten", make_whiten),
            "miles.utils.distributed_utils:distributed_masked_whiten",
            f"{_STATE}.effective_dp_cp",
            f"{_STATE}._dp_mode",
            f"{_GROUPS}:GroupsInfo",
            _STATE,
            f"{_GROUPS}:GroupInfo",
        ),
    ),
)
