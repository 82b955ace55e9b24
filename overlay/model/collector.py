"""The garbage collector: pausing it, and asking it about a heap that somebody may have frozen."""

from __future__ import annotations

import gc
import os

#: A fresh Python 3.12 has some hundred frozen objects of its own; a server that froze its heap has many more.
FROZEN_BY_PYTHON = 2000

_paused = False


class paused:  # noqa: N801 -- it is used like `contextlib.suppress`
    """Keeps the collector from running for as long as a `with` lasts.

    A syntax tree is a hundred thousand objects, and after so many the collector looks through the whole heap,
    of a trainer again and again, to find nothing: trees have no circles. Where somebody else has switched it
    off it stays off. Two threads that pause it at once may get it back a little early, which costs time only.
    """

    def __enter__(self) -> None:
        global _paused  # noqa: PLW0603 -- of the process, as the collector is
        self._was = gc.isenabled()
        _paused = _paused or self._was
        gc.disable()

    def __exit__(self, *_error: object) -> None:
        global _paused  # noqa: PLW0603
        if self._was:
            _paused = False
            gc.enable()


class thawed(paused):  # noqa: N801 -- see above
    """Lets the collector tell about frozen objects as well, for as long as a `with` lasts.

    It does not collect meanwhile: that would write to pages which a server shares with its children. Nobody
    can tell afterwards what was frozen before, so everything is frozen that exists at the end.
    """

    def __enter__(self) -> None:
        super().__enter__()
        self._frozen = frozen()
        if self._frozen:
            gc.unfreeze()

    def __exit__(self, *error: object) -> None:
        if self._frozen:
            gc.freeze()
        super().__exit__(*error)


def frozen() -> bool:
    """Return whether somebody called `gc.freeze()`: the collector tells nothing about what is frozen."""
    return gc.get_freeze_count() > FROZEN_BY_PYTHON


def _resume() -> None:
    """Give the child of a fork its collector back: the thread that would do so is not there."""
    if _paused:
        gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_resume)
