"""`slime.group-timeouts`: each process group keeps what it was made with, and is remade with it."""

import os
from functools import wraps
from typing import Any

from overlay.compat.projects import SLIME
from overlay.effect import effect
from overlay.patch import Patch, one_target, replaced, variant

_GROUPS = "slime.utils.reloadable_process_group"
EFFECT = effect(__name__, "group", did="made anew", always=True)
#: Where a group keeps what it was made with.
_MADE_WITH = "overlay_made_with"


def make_monkey_patch(original: Any, module: Any) -> Any:
    """Wrap what gives torch slime's groups: each keeps the arguments that it was made with."""

    def monkey_patch_torch_dist() -> None:
        before = module.dist.new_group
        original()
        slimes = module.dist.new_group
        if slimes is before:  # it was called before
            return

        def new_group(*args: Any, **kwargs: Any) -> Any:
            group = slimes(*args, **kwargs)
            if isinstance(group, module.ReloadableProcessGroup):
                group.group_info[_MADE_WITH] = (args, kwargs)
            return group

        module.dist.new_group = new_group

    return wraps(original)(monkey_patch_torch_dist)


def make_reload(original: Any, module: Any) -> Any:
    """Wrap what makes groups anew: those that kept their arguments are made first, with them, in order."""

    def reload_process_groups() -> None:
        pid = os.getpid()
        for group in module.ReloadableProcessGroup.GROUPS.get(pid, ()):
            if group.group is None and _MADE_WITH in group.group_info:
                EFFECT.changed += 1
                args, kwargs = group.group_info[_MADE_WITH]
                group.group = module.old_new_group_dict[pid](*args, **kwargs)
        original()

    return wraps(original)(reload_process_groups)


PATCH = Patch(
    id="slime.group-timeouts",
    summary="Process groups keep their timeout and options after an offload",
    why="Where training and rollout share GPUs, slime destroys its process groups with each offload and "
    "remakes them from their ranks alone. From the second rollout on, --distributed-timeout-minutes and NCCL "
    "options are lost, and the watchdog stops a job in which a rank waits longer than torch's 10 minutes. "
    "With the patch each group is made as it was at first.",
    changes=("crashes",),
    met="Offloaded training with another --distributed-timeout-minutes than 10, or NCCL options.",
    upstream=("radixark/miles#1594",),
    evidence="slime's commit fb42ae4 (#2208, in 0.3.1) remakes each group with its first arguments.",
    targets=one_target(
        SLIME,
        variant(
            "0.2",
            replaced(f"{_GROUPS}:monkey_patch_torch_dist", make_monkey_patch),
            replaced(f"{_GROUPS}:reload_process_groups", make_reload),
            f"{_GROUPS}:ReloadableProcessGroup.reload_process_groups",
        ),
        tells=(_GROUPS,),
    ),
)
