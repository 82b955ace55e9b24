"""The import hook: tells the engine about each watched module as soon as it has been executed.

It stands first on `sys.meta_path`, stays armed until it is taken out, and serves reloads and second
imports as well (wrapt's hooks fire once and are lost when one of them raises). A module that is being
executed when the hook arrives is reported when it is done.
"""

from __future__ import annotations

import _thread
import sys
from importlib.machinery import ModuleSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any

    Imported = Callable[[ModuleType], None]


class WatchingFinder:
    """A meta path finder that finds nothing itself, and watches a set of module names."""

    #: By this the engine knows its own finders when it looks for sources.
    overlay_finder = True

    def __init__(self, names: frozenset[str], imported: Imported) -> None:
        self._names = names
        self._imported = imported
        self._asking: set[tuple[int, str]] = set()
        #: Modules whose loader has been hooked: they will be reported.
        self.hooked: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a watched module by way of the other finders, and hook its loader."""
        if fullname not in self._names:
            return None
        key = (_thread.get_ident(), fullname)
        if key in self._asking:  # another finder asks the whole path again, as wrapt's does
            return None
        self._asking.add(key)
        try:
            spec = self._ask_others(fullname, path, target)
        finally:
            self._asking.discard(key)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            self.hooked.add(fullname)
            spec.loader = HookedLoader(spec.loader, self._imported)  # type: ignore[assignment]
        return spec

    def _ask_others(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            find_spec = getattr(finder, "find_spec", None)
            if finder is self or find_spec is None:
                continue
            spec: ModuleSpec | None = find_spec(fullname, path, target)
            if spec is not None:
                return spec
        return None

    def install(self) -> None:
        """Arm the finder, in front of all others."""
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Disarm the finder."""
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]


class HookedLoader:
    """The loader of one module, which reports it when it has been executed.

    It stands in for the real loader only until then: modules keep the loader that they would have had.
    """

    def __init__(self, loader: Any, imported: Imported) -> None:
        self._loader = loader
        self._overlay_imported = imported

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module as the real loader does."""
        create = getattr(self._loader, "create_module", None)
        module: ModuleType | None = create(spec) if create else None
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module, then report it."""
        spec = module.__spec__
        if spec is not None:
            spec.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._overlay_imported(module)


def is_executing(module: ModuleType) -> bool:
    """Return whether a module in `sys.modules` is still being executed (a circular import, say)."""
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def when_executed(module: ModuleType, imported: Imported) -> None:
    """Report a module that is being executed as soon as it is done.

    The import system ends by clearing a flag on the module's spec, and tells nobody. The spec gets a class
    that listens for that, and has its own class back afterwards.
    """
    spec = module.__spec__
    if not isinstance(spec, ModuleSpec):
        msg = f"{module.__name__} is being imported in a way that cannot be followed"
        raise TypeError(msg)
    plain = type(spec)

    def report() -> None:
        if sys.modules.get(module.__name__) is not module:
            return  # its execution failed
        try:
            imported(module)
        except BaseException:
            # The import fails, as from a loader, and must fail again when it is tried again.
            del sys.modules[module.__name__]
            raise

    class ListeningSpec(plain):  # type: ignore[valid-type, misc]
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if name == "_initializing" and not value:
                object.__setattr__(self, "__class__", plain)
                report()

    spec.__class__ = ListeningSpec
