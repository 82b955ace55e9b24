"""What takes the place of the scheduler's `load_state_dict`."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any


def make_load(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build `load_state_dict`, which applies the schedule once all of it has been read."""

    def load_state_dict(self: Any, state_dict: dict[str, Any]) -> Any:
        loaded = original(self, state_dict)
        self.step(increment=0)
        return loaded

    # Upstream's annotations, which are part of what callers see.
    load_state_dict.__annotations__ = dict(getattr(original, "__annotations__", {}))
    return load_state_dict
