"""What makes process groups anew as they were made at first."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

#: Where a group keeps what it was made with.
_MADE_WITH = "overlay_made_with"


def make_monkey_patch(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
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

    return monkey_patch_torch_dist


def make_reload(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Wrap what makes groups anew: those that kept their arguments are made with them, in slime's order."""
    import os

    from overlay.patches.slime.group_timeouts.effect import EFFECT

    def reload_process_groups() -> None:
        pid = os.getpid()
        for group in module.ReloadableProcessGroup.GROUPS.get(pid, ()):
            if group.group is None and _MADE_WITH in group.group_info:
                EFFECT.changed += 1
                args, kwargs = group.group_info[_MADE_WITH]
                group.group = module.old_new_group_dict[pid](*args, **kwargs)
        original()

    return reload_process_groups
