"""The marks of a replacement: whose it is, and what it replaced."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FunctionType

#: By this a replacement says whose it is, and by this it keeps what it replaced.
OWNER = "__overlay_patch__"
ORIGINAL = "__overlay_original__"


def is_wrapper(function: FunctionType) -> bool:
    """Return whether a function was made with `functools.wraps`: its marks are copies of another's."""
    return "__wrapped__" in function.__dict__
