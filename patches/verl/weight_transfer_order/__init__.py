"""`verl.weight-transfer-order`: no bucket of weights is read before NCCL has written it.

A broadcast of Ray's returns once its kernel is enqueued, on a stream that no other waits for. verl's
operation waits for that, and hands the bucket on. The wait is asked as before, and the device is waited for
behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from overlay.compat.projects import VERL
from overlay.effect import effect
from overlay.patch import Patch, one_target, replaced, variant

_ENGINE = "verl.checkpoint_engine.nccl_checkpoint_engine"
_WAIT = f"{_ENGINE}:BroadcastOperation.wait_for_complete"
_RECEIVE = f"{_ENGINE}:NCCLCheckpointEngine.receive_weights"
EFFECT = effect(__name__, "transfer", did="waited for the device after", always=True)


def make_wait(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build `wait_for_complete`: what has been waited for is complete on the device as well."""

    async def wait_for_complete(self: Any) -> Any:
        metadata = await original(self)
        # The broadcast has been enqueued, on a stream of Ray's own.
        module.torch.cuda.synchronize()
        EFFECT.changed += 1
        return metadata

    return wait_for_complete


PATCH = Patch(
    id="verl.weight-transfer-order",
    summary="Rollout workers read no bucket of weights before NCCL has written it",
    why=(
        "verl's NCCL checkpoint engine takes a broadcast for complete when its kernel has been enqueued."
        " The first bucket that a rollout worker receives, which may be the only one, is handed to the "
        "inference engine at once, and one that copies on a stream of its own reads what was there "
        "before: weights that are wrong here and there, with no error. The sender may free its buffer "
        "under the last broadcast in the same way. With the patch the wait of the operation includes the"
        " device. Between buckets verl waits for it anyway, so it costs one wait more a transfer."
    ),
    evidence="verl 0.9.0 waits for the device too before it hands on the first bucket (#7083).",
    changes=("numbers",),
    met="Weights that are sent to separate rollout workers by the checkpoint engine `nccl`.",
    upstream=("verl-project/verl#7083",),
    targets=one_target(
        VERL,
        variant(
            "0.7.1 and 0.8",
            replaced(_WAIT, make_wait),
            f"{_ENGINE}:BroadcastOperation._run",
            _RECEIVE,
        ),
        tells=(
            f"{_ENGINE}:NCCLCheckpointEngine._receive_weight_chunks",
            _ENGINE,
        ),
    ),
)
