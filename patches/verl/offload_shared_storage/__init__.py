"""`verl.offload-shared-storage`: offloading a model frees no storage that another tensor holds.

verl 0.9 resizes the storage of a parameter to nothing once it has been copied to the CPU. It asks a function
whether the parameter is alone in its storage, which looks at the parameter's size and layout: another tensor
of the same size, or one over a part of it, is not seen, and reads freed memory afterwards. What is on the CPU
already is not copied, so that it is the parameter itself whose memory is freed. The function is asked here as
well, and then torch and Python, which count who holds a storage and a tensor. A storage that nobody else
holds goes as before, and another one goes with the last that holds it.
"""

from __future__ import annotations

from overlay.compat.projects import VERL
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches.verl.offload_shared_storage.fix import OffloadWarning, make_can_resize

#: The names by which jobs filter what the patch says.
__all__ = ["PATCH", "OffloadWarning"]

_CAN_RESIZE = "verl.utils.megatron_utils:_can_safely_resize_storage"
_OFFLOAD = "verl.utils.megatron_utils:offload_megatron_model_to_cpu"

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
