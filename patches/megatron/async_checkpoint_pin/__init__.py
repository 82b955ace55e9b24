"""`megatron.async-checkpoint-pin`: what an asynchronous checkpoint staged stays until it is written."""

from typing import Any

from overlay.compat.projects import MEGATRON
from overlay.effect import effect
from overlay.patch import Patch, around, one_target, replaced, variant

_ASYNC = "megatron.core.dist_checkpointing.strategies.async_utils"
#: Starts the process, and says whether the staged tensors are kept: that is the defect.
_START = f"{_ASYNC}:TemporalAsyncCaller.schedule_async_call"
EFFECT = effect(__name__, "save", did="kept what is staged of", always=True)


@around
def schedule(original: Any, self: Any, async_request: Any) -> Any:
    """Keep what is staged on the process that writes it: upstream drops that once it has been joined."""
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


PATCH = Patch(
    id="megatron.async-checkpoint-pin",
    summary="What an asynchronous checkpoint has staged is kept until it is written",
    why="To save asynchronously, Megatron copies its shards into pinned host memory and forks a process that "
    "writes them. Until 0.16.1 nothing holds the copies meanwhile: torch hands out the memory for the next "
    "copy, and the checkpoint is corrupt without a word. With the patch they are held until the process has "
    "been joined.",
    changes=("numbers", "memory"),
    met="Asynchronous saving (--async-save) with a process that is forked for each checkpoint, the default.",
    evidence="megatron-core 0.17 holds the copies so long, and keeps the contract without the patch.",
    upstream=("NVIDIA/Megatron-LM#2288",),
    targets=one_target(
        MEGATRON,
        variant("0.12", replaced(f"{_ASYNC}:AsyncCallsQueue.schedule_async_request", schedule), _START),
    ),
)
