"""What takes the place of the constructor of a transformer layer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any


class _FromOne(list):  # type: ignore[type-arg]
    """A list whose first item is number one."""

    def __getitem__(self, number: Any) -> Any:
        if not isinstance(number, int):
            return super().__getitem__(number)
        if number < 1:
            raise IndexError(number)
        found = super().__getitem__(number - 1)
        from overlay.patches.megatron.cp_comm_type_by_layer.effect import EFFECT

        EFFECT.calls += 1
        # For the last one there is nothing at its own number.
        EFFECT.changed += number >= len(self) or super().__getitem__(number) != found
        return found

    def __deepcopy__(self, _memo: object) -> list[Any]:
        # A configuration that is copied meanwhile, as that of shared experts, outlives the constructor.
        return list(self)


def make_init(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build `TransformerLayer.__init__`, for which the list counts from one as long as it runs."""

    def init(self: Any, config: Any, *args: Any, **options: Any) -> None:
        types = config.cp_comm_type
        if type(types) is not list:
            original(self, config, *args, **options)
            return
        config.cp_comm_type = _FromOne(types)
        try:
            original(self, config, *args, **options)
        finally:
            config.cp_comm_type = types

    return functools.wraps(original)(init)
