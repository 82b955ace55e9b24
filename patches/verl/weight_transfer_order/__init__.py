"""`verl.weight-transfer-order`: no bucket of weights is read before NCCL has written it."""

from typing import Any

from overlay.compat.projects import VERL
from overlay.effect import effect
from overlay.patch import Patch, one_target, replaced, variant

_ENGINE = "verl.checkpoint_engine.nccl_checkpoint_engine"
EFFECT = effect(__name__, "transfer", did="waited for the device after", always=True)


def make_wait(original: Any, module: Any) -> Any:
    """Wait for the device after the original."""

    async def wait_for_complete(self: Any) -> Any:
        metadata = await original(self)
        module.torch.cuda.synchronize()
        EFFECT.changed += 1
        return metadata

    return wait_for_complete


PATCH = Patch(
    id="verl.weight-transfer-order",
    summary="Rollout workers read no bucket of weights before NCCL has written it",
    why="verl's NCCL checkpoint engine takes a broadcast for complete when its kernel has been enqueued, on "
    "a stream that no other waits for, and hands the first bucket to the inference engine at once. An engine "
    "that copies on a stream of its own then reads stale memory: wrong weights, with no error. With the "
    "patch the wait includes the device, which costs one more wait per transfer.",
    evidence="verl 0.9.0 waits for the device too before it hands on the first bucket (#7083).",
    changes=("numbers",),
    met="Weights that are sent to separate rollout workers by the checkpoint engine `nccl`.",
    upstream=("verl-project/verl#7083",),
    targets=one_target(
        VERL,
        variant(
            "0.7.1 and 0.8",
            replaced(f"{_ENGINE}:BroadcastOperation.wait_for_complete", make_wait),
            f"{_ENGINE}:BroadcastOperation._run",
            f"{_ENGINE}:NCCLCheckpointEngine.receive_weights",
        ),
        tells=(f"{_ENGINE}:NCCLCheckpointEngine._receive_weight_chunks", _ENGINE),
    ),
)
