"""What a process that has been asked to patch waits for: the first import of an upstream.

Most processes of a job never import one, so patches are loaded when the first module of their packages is
imported, or when a file of theirs is run. It finds nothing itself.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import FrameType, ModuleType
    from typing import Any


def space_of_main(frame: FrameType | None) -> dict[str, Any]:
    """Return the names of what is run: of the frame that imports if it is that, else of `__main__`."""
    while frame is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    space = frame.f_globals if frame is not None else {}
    if space.get("__name__") == "__main__":
        return space
    found: dict[str, Any] = getattr(sys.modules.get("__main__"), "__dict__", {})
    return found


def runs_one_of(packages: frozenset[str], frame: FrameType | None) -> bool:
    """Return whether what is run is a file of one of some packages. `frame`: of who imports, if anybody."""
    space = space_of_main(frame)
    file, module = space.get("__file__"), getattr(space.get("__spec__"), "name", "")
    lies_in = isinstance(file, str) and not packages.isdisjoint(os.path.abspath(file).split(os.sep))
    return lies_in or module.partition(".")[0] in packages


class Waiting:
    """A meta path finder that calls `wake` before the first module of some top-level packages is found."""

    #: By this the engine knows its own finders when it looks for sources.
    overlay_finder = True

    def __init__(self, packages: frozenset[str], wake: Callable[[], None]) -> None:
        self._packages = packages
        self.wake = wake

    def install(self) -> None:
        """Stand first."""
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Go away, if it is there."""
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]

    def missed(self) -> list[str]:
        """Return the packages that were imported without a word to this finder."""
        return sorted(self._packages.intersection(sys.modules))

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Wake the engine if it is time, and ask its finder, which nobody else does for this module."""
        ours = fullname.partition(".")[0] in self._packages
        if sys.meta_path[0] is not self and self in sys.meta_path:
            # Somebody came first, who might answer for an upstream one day, or has.
            sys.meta_path[:] = [self, *(finder for finder in sys.meta_path if finder is not self)]
            ours = ours or not self._packages.isdisjoint(sys.modules)
        if not ours and not runs_one_of(self._packages, sys._getframe(1)):  # noqa: SLF001 -- who imports
            return None
        self.wake()
        finder = sys.meta_path[0]
        if finder is self or not getattr(finder, "overlay_finder", False):
            return None
        return finder.find_spec(fullname, path, target)
