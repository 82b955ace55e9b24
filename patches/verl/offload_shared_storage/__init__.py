"""`verl.offload-shared-storage`: offloading a model frees no storage that another tensor holds.

verl 0.9 resizes the storage of a parameter to nothing once it has been copied to the CPU. It asks a function
whether the parameter is alone in its storage, which looks at the parameter's size and layout: another tensor
of the same size, or one over a part of it, is not seen, and reads freed memory afterwards. What is on the CPU
already is not copied, so that it is the parameter itself whose memory is freed. The function is asked here as
well, and then torch and Python, which count who holds a storage and a tensor. A storage that nobody else
holds goes as before, and another one goes with the last that holds it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

from overlay.compat.projects import VERL
from overlay.effect import Figure, effect
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches._tensor_holders import cannot_tell, make_holders

#: The names by which jobs filter what the patch says.
__all__ = ["PATCH", "OffloadWarning"]
_CAN_RESIZE = "verl.utils.megatron_utils:_can_safely_resize_storage"
_OFFLOAD = "verl.utils.megatron_utils:offload_megatron_model_to_cpu"
EFFECT = effect(
    __name__,
    "storage",
    Figure(name="bytes", says="bytes that verl would have freed under another tensor", unit="bytes"),
    did="left whole",
    then="{bytes} that another tensor holds",
)


class OffloadWarning(UserWarning):
    """Memory of the device that stays taken, because a tensor that is not offloaded holds it too."""


def make_can_resize(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build `_can_safely_resize_storage`: whether a storage is that of one tensor and of no other."""
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
        warnings.warn(
            f"verl.offload-shared-storage: {tensor.untyped_storage().nbytes()} bytes on {tensor.device} are "
            f"not freed with the parameter or gradient of shape {list(tensor.shape)} that was offloaded from "
            "them: another tensor holds them too. They go with that one.",
            OffloadWarning,
            stacklevel=2,
        )
        return False

    return _can_safely_resize_storage


PATCH = Patch(
    id="verl.offload-shared-storage",
    summary="Offloading a model frees no storage that another tensor holds",
    why=(
        "When verl 0.9 offloads a model without DDP, such as the reference model, it frees the storage of "
        "each parameter at once, if the parameter has the size of it. Another parameter over the same "
        "storage, or a tensor that somebody has kept of it, then reads freed memory; and a model that is "
        "offloaded a second time loses all its weights, because they are where they were copied to. With "
        "the patch a storage that something else holds is left to it, with a warning if that is memory of "
        "the device. Where nothing else does, all is as it was; and there verl 0.8 frees it just as early, "
        "without resizing anything."
    ),
    evidence=(
        "An offload changes no value: the contract compares each tensor before and after. Storages that "
        "nothing else holds are freed at the same time as by verl."
    ),
    changes=("numbers",),
    met=(
        "Parameter offload of a model without DDP, such as the reference model, whose parameters share "
        "storage."
    ),
    upstream=("verl-project/verl#6447",),
    targets=one_target(
        VERL,
        variant(
            "0.9",
            replaced(_CAN_RESIZE, make_can_resize),
            _OFFLOAD,
        ),
    ),
)
