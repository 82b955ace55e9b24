"""What takes the place of the scheduler's `load_state_dict`."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any


def make_load(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build `load_state_dict`, which applies the schedule once all of it has been read."""
    from overlay.patches.megatron.resumed_weight_decay.effect import EFFECT

    def load_state_dict(self: Any, state_dict: dict[str, Any]) -> Any:
        loaded = original(self, state_dict)
        before = _decays(self)
        self.step(increment=0)
        off = max((abs(one - other) for one, other in zip(before, _decays(self), strict=True)), default=0.0)
        EFFECT.calls += 1
        EFFECT.changed += off > 0
        EFFECT.off = max(EFFECT.off, off)
        return loaded

    # Upstream's annotations, which are part of what callers see.
    load_state_dict.__annotations__ = dict(getattr(original, "__annotations__", {}))
    return load_state_dict


def _decays(scheduler: Any) -> list[float]:
    """Return the weight decay of each group of parameters, as far as a number says it."""
    groups = getattr(scheduler.optimizer, "param_groups", ())
    found = [group.get("weight_decay") for group in groups]
    return [one if type(one) in (int, float) else 0.0 for one in found]
