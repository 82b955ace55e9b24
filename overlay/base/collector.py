"""The garbage collector, while a great many objects are made that are gone again soon."""

from __future__ import annotations

import gc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType


class Paused:
    """Keeps the collector from running: `with Paused():`.

    A syntax tree is a hundred thousand objects, and after so many the collector looks through the whole heap,
    of a trainer again and again, to find nothing: trees have no circles. Where somebody else has switched it
    off it stays off. Two threads that pause it at once may get it back a little early, which costs time only.
    """

    def __init__(self) -> None:
        self._was = False

    def __enter__(self) -> None:
        self._was = gc.isenabled()
        gc.disable()

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if self._was:
            gc.enable()
