"""`slime.group-timeouts`: process groups have their timeout after an offload too.

slime destroys its process groups with each offload and makes them anew from their ranks alone. The function
by which slime gives torch such groups is wrapped, so that each keeps what it was made with, and the one that
makes them anew: what a group has kept comes first, and slime does the rest.
"""

from __future__ import annotations

from overlay.compat.projects import SLIME
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches.slime.group_timeouts.fix import make_monkey_patch, make_reload

_GROUPS = "slime.utils.reloadable_process_group"
_CLASS = f"{_GROUPS}:ReloadableProcessGroup"

PATCH = Patch(
    id="slime.group-timeouts",
    summary="Process groups have their timeout and options after an offload too",
    why=(
        "Where training and rollout share GPUs, slime destroys its process groups with each offload and "
        "makes them anew from their ranks alone. From the second rollout on, timeout and NCCL options of "
        "Megatron's groups are torch's own: --distributed-timeout-minutes is lost, and the watchdog stops a "
        "job in which a rank waits for more than 10 minutes, for a checkpoint or a long step. With the patch "
        "each group is made as it was at first, as in slime 0.3.1."
    ),
    changes=("crashes",),
    met=(
        "Offloaded training (--offload-train, --colocate) with a --distributed-timeout-minutes other than "
        "10, or NCCL options."
    ),
    upstream=("radixark/miles#1594",),
    evidence=(
        "slime's commit fb42ae4 (#2208, in 0.3.1) makes each group anew with the arguments that it had at "
        "first."
    ),
    targets=one_target(
        SLIME,
        variant(
            "0.2",
            replaced(f"{_GROUPS}:monkey_patch_torch_dist", make_monkey_patch),
            replaced(f"{_GROUPS}:reload_process_groups", make_reload),
            f"{_CLASS}.reload_process_groups",
        ),
        tells=(_GROUPS,),
    ),
)
