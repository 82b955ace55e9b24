"""`megatron.async-checkpoint-pin`: what an asynchronous checkpoint staged stays until it is written.

The queue of asynchronous calls is wrapped. It keeps what a request has staged on the process that writes
it, and that process is dropped by upstream when it has been joined.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from overlay.compat.projects import MEGATRON
from overlay.effect import effect
from overlay.patch import Patch, one_target, replaced, variant

_ASYNC = "megatron.core.dist_checkpointing.strategies.async_utils"
_SCHEDULE = f"{_ASYNC}:AsyncCallsQueue.schedule_async_request"
#: Starts the process. A digest, as it says whether the staged tensors are kept: that is the defect.
_START = f"{_ASYNC}:TemporalAsyncCaller.schedule_async_call"
EFFECT = effect(__name__, "save", did="kept what is staged of", always=True)


def make_schedule(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build `AsyncCallsQueue.schedule_async_request`, which holds what is staged as long as its process."""

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


PATCH = Patch(
    id="megatron.async-checkpoint-pin",
    summary="What an asynchronous checkpoint has staged is kept until it is written",
    why=(
        "To save asynchronously, Megatron copies its shards into pinned host memory and forks a process "
        "that writes them. Until 0.16.1 nothing in the trainer holds the copies once the process has "
        "started: torch takes the pinned memory back and hands it out for the next copy to the host, which "
        "then lands in what the process still writes, as pinned pages are shared with it. The checkpoint "
        "is corrupt, and nothing says so. With the patch the copies are held until the process has been "
        "joined, as in 0.17."
    ),
    changes=("numbers", "memory"),
    met=(
        "Asynchronous saving (--async-save) with the process that is forked for each checkpoint, which is "
        "the default."
    ),
    evidence=(
        "megatron-core 0.17 holds what it has staged until the process has been joined; the contract "
        "reads it there."
    ),
    upstream=("NVIDIA/Megatron-LM#2288",),
    targets=one_target(
        MEGATRON,
        variant(
            "0.12",
            replaced(_SCHEDULE, make_schedule),
            _START,
        ),
    ),
)
