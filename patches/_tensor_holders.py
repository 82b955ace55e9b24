"""Who holds a tensor, as Python and torch count it."""

from __future__ import annotations

from overlay.errors import OverlayError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def cannot_tell() -> OverlayError:
    """Return the error of a patch that must know who holds a tensor, under a torch that does not tell."""
    import torch

    return OverlayError(f"torch {torch.__version__} does not tell who holds a tensor")


def make_holders() -> Callable[[Any], tuple[int, ...]] | None:
    """Build `holders(tensor)`, or return `None` if this torch does not tell.

    It returns how many hold the tensor and its storage, in Python and in C++: numbers that mean something
    beside those of a fresh tensor that is asked about in the same way.
    """
    import sys

    import torch

    count_storage = getattr(torch._C, "_storage_Use_Count", None)  # noqa: SLF001 -- there is no public one
    count_tensor = getattr(torch.Tensor, "_use_count", None)
    if count_storage is None or count_tensor is None:
        return None

    def holders(tensor: Any) -> tuple[int, ...]:
        storage = tensor.untyped_storage()
        counts = count_tensor(tensor), count_storage(storage._cdata)  # noqa: SLF001
        return sys.getrefcount(tensor), sys.getrefcount(storage), *counts

    return holders
