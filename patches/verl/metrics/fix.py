"""What hands verl's logger the figures of the patches."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any


def make_log(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap the call that logs: it gets what was to be logged, and the figures of this process."""
    import overlay
    from overlay.patches.verl.metrics.effect import EFFECT

    def log(self: Any, data: Any, step: Any, backend: Any = None) -> Any:
        EFFECT.changed += 1
        return original(self, {**data, **overlay.metrics(reached=True)}, step, backend)

    return log
