"""The garbage collector, while a great many objects are made that are gone again soon."""

from __future__ import annotations

import gc
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def paused() -> Iterator[None]:
    """Keep the collector from running for as long as a `with` lasts.

    A syntax tree is a hundred thousand objects, and after so many the collector looks through the whole heap,
    of a trainer again and again, to find nothing: trees have no circles. Where somebody else has switched it
    off it stays off. Two threads that pause it at once may get it back a little early, which costs time only.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
