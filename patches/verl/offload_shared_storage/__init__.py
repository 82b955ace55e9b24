"""`verl.offload-shared-storage`: who holds a tensor and its storage is asked before an offload frees it."""

from typing import Any

from overlay import log
from overlay.compat.projects import VERL
from overlay.effect import Figure, effect
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches._tensor_holders import cannot_tell, make_holders

_UTILS = "verl.utils.megatron_utils"
EFFECT = effect(
    __name__,
    "storage",
    Figure(name="bytes", says="bytes that verl would have freed under another tensor", unit="bytes"),
    did="left whole",
    then="{bytes} that another tensor holds",
)


def make_can_resize(original: Any, _module: Any) -> Any:
    """Return whether a storage is that of one tensor and of no other."""
    import torch

    holders = make_holders()
    if holders is None:
        raise cannot_tell()

    def of_one_name(tensor: torch.Tensor) -> tuple[int, ...]:
        return holders(tensor)

    def _can_safely_resize_storage(tensor: torch.Tensor) -> bool:
        # What was on the CPU before is what verl takes for its copy.
        if tensor.device.type == "cpu" or not original(tensor):
            return False
        # Like the caller's tensor, it has one name outside of the function that it is given to.
        fresh = torch.empty(0, device="cpu")
        EFFECT.calls += 1
        if holders(tensor) == of_one_name(fresh):
            return True
        EFFECT.changed += 1
        EFFECT.bytes += tensor.untyped_storage().nbytes()
        log.warning(
            f"verl.offload-shared-storage: {tensor.untyped_storage().nbytes()} bytes on {tensor.device} are "
            f"not freed with the parameter or gradient of shape {list(tensor.shape)} that was offloaded from "
            "them: another tensor holds them too, and they go with it"
        )
        return False

    return _can_safely_resize_storage


PATCH = Patch(
    id="verl.offload-shared-storage",
    summary="Offloading a model frees no storage that another tensor holds",
    why="When verl 0.9 offloads a model without DDP, such as the reference model, it frees the storage of "
    "each parameter that has the size of it. Another parameter over the same storage, or a tensor that "
    "somebody has kept of it, then reads freed memory; and a model that is offloaded a second time loses all "
    "its weights, because they are where they were copied to. With the patch a storage that something else "
    "holds goes with the last that holds it, with a warning if that is memory of the device.",
    evidence="An offload changes no value. What nothing else holds is freed at the same time as by verl.",
    changes=("numbers",),
    met="Parameter offload of a model without DDP, such as the reference's, that shares storage.",
    upstream=("verl-project/verl#6447",),
    targets=one_target(
        VERL,
        variant(
            "0.9",
            replaced(f"{_UTILS}:_can_safely_resize_storage", make_can_resize),
            f"{_UTILS}:offload_megatron_model_to_cpu",
        ),
    ),
)
