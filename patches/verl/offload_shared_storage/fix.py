"""What verl is told of a storage: whether another tensor holds it, of which torch and Python know."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

from overlay.patches._tensor_holders import cannot_tell, make_holders


class OffloadWarning(UserWarning):
    """Memory of the device that stays taken, because a tensor that is not offloaded holds it too."""


def make_can_resize(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build `_can_safely_resize_storage`: whether a storage is that of one tensor and of no other."""
    import torch

    holders = make_holders()
    if holders is None:
        raise cannot_tell()

    from overlay.patches.verl.offload_shared_storage.effect import EFFECT

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
