"""What slime's process groups leave out on a newer torch than slime's.

Their class hands on each of torch's collectives by its name to the group that it holds. A name that torch has
got since then is not handed on, and is found on torch's own class, which has no backend behind it.
"""

from __future__ import annotations

from typing import Any

#: Of torch 2.13; slime's images have 2.9 and 2.11.
NEWER = ("all_gather_single", "reduce_scatter_single", "all_to_all_single")


def hand_on() -> None:
    """Let slime's groups hand on the names that they do not know."""
    from slime.utils.reloadable_process_group import ReloadableProcessGroup

    for name in NEWER:
        if name not in vars(ReloadableProcessGroup):
            setattr(ReloadableProcessGroup, name, _handed(name))


def _handed(name: str) -> Any:
    def collective(self: Any, *args: Any, **more: Any) -> Any:
        return getattr(self.group, name)(*args, **more)

    collective.__name__ = name
    return collective
