"""The garbage collector, while a great many objects are made that are gone again soon."""

from __future__ import annotations

import gc
import os
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_paused = False


@contextmanager
def paused() -> Iterator[None]:
    """Keep the collector from running for as long as a `with` lasts.

    A syntax tree is a hundred thousand objects, and after so many the collector looks through the whole heap,
    of a trainer again and again, to find nothing: trees have no circles. Where somebody else has switched it
    off it stays off. Two threads that pause it at once may get it back a little early, which costs time only.
    """
    global _paused  # noqa: PLW0603 -- of the process, as the collector is
    was = gc.isenabled()
    _paused = _paused or was
    gc.disable()
    try:
        yield
    finally:
        if was:
            _paused = False
            gc.enable()


def _resume() -> None:
    """Give the child of a fork its collector back: the thread that would do so is not there."""
    if _paused:
        gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_resume)
