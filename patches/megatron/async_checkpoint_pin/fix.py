"""What takes the place of the method that starts an asynchronous call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any


def make_schedule(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build `AsyncCallsQueue.schedule_async_request`, which holds what is staged as long as its process."""
    from overlay.patches.megatron.async_checkpoint_pin.effect import EFFECT

    def schedule_async_request(self: Any, async_request: Any) -> Any:
        stage = getattr(async_request, "preload_fn", None)
        # The persistent process stages for itself, and gets the function by pickle.
        if self.persistent or not stage:
            return original(self, async_request)
        staged: list[Any] = []

        def kept() -> Any:
            staged.append(stage())
            return staged[0]

        index = original(self, async_request._replace(preload_fn=kept))
        process = self.async_calls[-1].async_caller.process
        if process is not None:
            process.overlay_staged = staged
            EFFECT.changed += 1
        return index

    return functools.wraps(original)(schedule_async_request)
