"""Standing at the calls by which a library starts processes, from `enable()` to `disable()`."""

from __future__ import annotations

import sys

from overlay import log
from overlay.errors import WorkersError
from overlay.runtime.finder import WatchingFinder
from overlay.runtime.process import here

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Interception:
    """Replaces calls of some modules, now or as soon as these are imported."""

    #: The library, as messages name it.
    library = ""
    modules: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self._finder: WatchingFinder | None = None
        self._replaced: list[tuple[Any, str, object, object]] = []
        self._said: set[str] = set()

    def watch(self) -> None:
        """Stand there. Raises `WorkersError` in strict mode, if processes run already that are not armed."""
        if self._finder is not None:
            return
        self._finder = WatchingFinder(self.modules, self._imported)
        self._finder.install()
        for name in self.modules:
            module = sys.modules.get(name)
            if module is not None and self._finder.has_executed(name, module):
                self._imported(name, module)
        self._look_around()

    def leave(self) -> None:
        """Restore the originals."""
        if self._finder is None:
            return
        self._finder.remove()
        self._finder = None
        while self._replaced:
            owner, attribute, original, own = self._replaced.pop()
            if vars(owner).get(attribute) is own:  # somebody else's is left alone
                setattr(owner, attribute, original)
        self._said.clear()

    def _replace(self, owner: Any, attribute: str, own: object) -> None:
        self._replaced.append((owner, attribute, vars(owner)[attribute], own))
        setattr(owner, attribute, own)

    def _imported(self, name: str, module: object) -> None:
        """Replace the calls of a module that has been executed, or executed again."""
        raise NotImplementedError

    def _look_around(self) -> None:
        """Refuse what runs already and is not armed."""
        raise NotImplementedError

    def _refuse(self, reason: str, way_out: str) -> None:
        """Say it once. Raises `WorkersError` instead in strict mode."""
        text = f"{self.library}: {reason}. Way out: {way_out}"
        if here().strict:
            raise WorkersError(text)
        if text not in self._said:
            self._said.add(text)
            log.warning(text)
