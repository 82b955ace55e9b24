"""`megatron.async-checkpoint-pin`: what an asynchronous checkpoint staged stays until it is written.

The queue of asynchronous calls is wrapped. It keeps what a request has staged on the process that writes
it, and that process is dropped by upstream when it has been joined.
"""

from __future__ import annotations

from overlay.compat.projects import MEGATRON
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches.megatron.async_checkpoint_pin.fix import make_schedule

_ASYNC = "megatron.core.dist_checkpointing.strategies.async_utils"
_SCHEDULE = f"{_ASYNC}:AsyncCallsQueue.schedule_async_request"
#: Starts the process. A digest, as it says whether the staged tensors are kept: that is the defect.
_START = f"{_ASYNC}:TemporalAsyncCaller.schedule_async_call"

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
