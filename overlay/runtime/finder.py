"""The import hook: which modules have been imported? Each watched one is reported once it has been executed.

It stands first on `sys.meta_path`, stays armed until it is taken out, and serves reloads and second
imports as well (wrapt's hooks fire once and are lost when one of them raises). A module that is being
executed when the hook arrives is reported when it has been executed. A module that is run instead of imported
is reported before its block for `__main__` (`main_module`).
"""

from __future__ import annotations

import _thread
import os
import sys
from _frozen_importlib import ModuleSpec  # `importlib` is three files to read, and this none

from overlay.runtime.waiting import space_of_main

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import CodeType, FrameType, ModuleType
    from typing import Any

    #: Called with the name under which a module was imported, and the module.
    Imported = Callable[[str, object], None]


class WatchingFinder:
    """A meta path finder that finds nothing itself, and watches a set of module names."""

    #: By this the engine knows its own finders when it looks for sources.
    overlay_finder = True

    def __init__(
        self,
        names: frozenset[str],
        imported: Imported,
        *,
        first: bool = True,
        at_start: bool = False,
        passed: Callable[[], None] | None = None,
    ) -> None:
        """Watch modules by their names.

        Args:
            names: The modules.
            imported: Called with each of them.
            first: Stay in front of whoever comes first later.
            at_start: What runs as `__main__` has imported nothing yet: its first import is still to come.
            passed: Called when somebody has come first, who may have imported a watched module.

        """
        self._names = names
        self._passed = passed
        #: What a file may be called that is one of them.
        self._stems = frozenset(name.rpartition(".")[2] for name in names)
        #: Files that run as `__main__` and have been looked at. What runs now is the caller's to ask for.
        main = None if at_start else getattr(sys.modules.get("__main__"), "__file__", None)
        self._looked: set[object] = {None, main}
        self._first = first
        self._imported = imported
        self._asking: set[tuple[int, str]] = set()
        #: Modules whose loader has been hooked: they will be reported.
        self._hooked: set[str] = set()
        #: Modules that were being executed when they were met: they will be reported too.
        self._awaited: dict[str, object] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a watched module by way of the other finders, and hook its loader."""
        if self._first and sys.meta_path[0] is not self and self in sys.meta_path:
            self.install()  # somebody came first, who might answer for a watched module one day, or has
            if self._passed is not None:
                self._passed()
        if self._first:
            self._look_at_main(sys._getframe(1))  # noqa: SLF001 -- who imports
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
            self._hooked.add(fullname)
            spec.loader = HookedLoader(spec.loader, fullname, self._imported)  # type: ignore[assignment]
        return spec

    def _ask_others(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            if finder is self:
                continue
            find_spec = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find_spec(fullname, path, target) if find_spec else None
            if spec is not None:
                return spec
        return None

    def has_met(self, name: str) -> bool:
        """Return whether the hook reports a module, now or when it has been executed."""
        return name in self._hooked or name in self._awaited

    def has_executed(self, name: str, module: object) -> bool:
        """Return whether a module that is there has been executed. If not, it will be reported then."""
        if getattr(spec_of(module), "_initializing", False):  # a circular import, say
            # If the hook has seen it, another thread is importing it right now, and the hook reports it.
            if name not in self._hooked and self._awaited.get(name) is not module:
                self._awaited[name] = module
                when_executed(module, name, self._imported)
            return False
        return True

    def _look_at_main(self, frame: FrameType | None) -> None:
        """Report a watched module that is run, as nothing, if its code will not report it."""
        space = space_of_main(frame)
        file = space.get("__file__")
        if file in self._looked:
            return
        self._looked.add(file)  # what follows imports as well
        try:
            name, silent = self.running(space)
            if name and silent:
                self._imported(name, None)
        except BaseException:
            self._looked.remove(file)  # the next import fails again
            raise

    def running(self, space: dict[str, Any]) -> tuple[str, bool]:
        """Return the name of a watched module that runs in `space`, and whether its code never reports it.

        The name is empty if there is none, or if its code is about to report it.
        """
        file = space.get("__file__")
        if not isinstance(file, str) or not (self._may_be(file) or space.get("__spec__") is not None):
            return "", False
        from overlay.runtime.main_module import running

        return running(space, self._names, self._imported)

    def _may_be(self, path: str) -> bool:
        return os.path.splitext(os.path.basename(os.path.realpath(path)))[0] in self._stems

    def _script(self, path: str) -> Any:
        """Find a watched module that is run as a script (a path hook)."""
        if not self._may_be(path):
            raise ImportError(path)
        from overlay.runtime.main_module import Script, name_of

        name = name_of(path, self._names)
        if not name:
            raise ImportError(path)
        try:
            sys._getframe(1)  # noqa: SLF001 -- whether Python code asks
        except ValueError:
            return Script(path, name, self._imported, first=True)
        return Script(path, name, self._imported, first=False)

    def install(self) -> None:
        """Arm the finder, in front of all others."""
        if self._first and self._script not in sys.path_hooks:
            sys.path_hooks.append(self._script)
        # In one step: another thread may be walking along the path.
        sys.meta_path[:] = [self, *(finder for finder in sys.meta_path if finder is not self)]

    def remove(self) -> None:
        """Disarm the finder."""
        sys.path_hooks[:] = [hook for hook in sys.path_hooks if hook != self._script]
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        for path, found in list(sys.path_importer_cache.items()):
            if getattr(found, "imported", None) == self._imported:  # a script, of which nobody would hear
                del sys.path_importer_cache[path]


class HookedLoader:
    """The loader of one module, which reports it when it has been executed.

    It stands in for the real loader only until then: modules keep the loader that they would have had.
    """

    def __init__(self, loader: Any, name: str, imported: Imported) -> None:
        #: The loader that the module would have had.
        self.real = loader
        self._name = name
        self._imported = imported

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copying and pickling ask for these before there is anything to ask
            raise AttributeError(name)
        return getattr(self.real, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module as the real loader does."""
        create = getattr(self.real, "create_module", None)
        module: ModuleType | None = create(spec) if create else None
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module, then report it."""
        spec = spec_of(module)
        # What `python -m` runs next is found by this spec.
        if spec is not None and not any(word.endswith(self._name) for word in sys.orig_argv):
            spec.loader = self.real
        module.__loader__ = self.real
        self.real.exec_module(module)
        # A module may have put another one in its place.
        self._imported(self._name, sys.modules.get(self._name, module))

    def get_code(self, name: str) -> CodeType | None:
        """Return the code by which the module is run as `__main__`, and reported."""
        plain: CodeType | None = self.real.get_code(name)
        if plain is None or not hasattr(self.real, "get_source"):
            return plain
        from overlay.runtime.main_module import code

        return code(self, self._name, self.real.get_source(name), plain, self._imported)

    def load_module(self, name: str) -> Any:
        """Load the module in the way that importlib has deprecated, and report it."""
        module = self.real.load_module(name)
        self._imported(self._name, module)
        return module


def spec_of(module: object) -> ModuleSpec | None:
    """Return the spec of a module without asking a stranger's `__getattr__`."""
    try:
        spec = object.__getattribute__(module, "__dict__").get("__spec__")
    except AttributeError:
        return None
    return spec if isinstance(spec, ModuleSpec) else None


def when_executed(module: object, name: str, imported: Imported) -> None:
    """Report a module that is being executed as soon as it is done.

    The import system ends by clearing a flag on the module's spec, and tells nobody. The spec gets a class
    that listens for that, and has its own class back afterwards.
    """
    spec = spec_of(module)
    if spec is None:
        return

    def report() -> None:
        found = sys.modules.get(name)
        if found is None:
            return  # its execution failed
        try:
            imported(name, found)
        except BaseException:
            # The import fails, as from a loader, and must fail again when it is tried again.
            sys.modules.pop(name, None)
            raise

    waiting = vars(spec).setdefault(_WAITING, [])
    waiting.append(report)
    if len(waiting) == 1:
        vars(spec)[_PLAIN] = type(spec)
        spec.__class__ = _listening(type(spec))
    if not getattr(spec, "_initializing", False) and waiting:
        _tell(spec)  # another thread came to the end of it in the meantime


_WAITING = "_overlay_waiting"
_PLAIN = "_overlay_plain"


def _listening(plain: type[ModuleSpec]) -> type[ModuleSpec]:
    class ListeningSpec(plain):  # type: ignore[misc, valid-type]
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if name == "_initializing" and not value:
                _tell(self)

    return ListeningSpec


def _tell(spec: ModuleSpec) -> None:
    """Give a spec its own class back, and tell those who waited for it."""
    waiting = vars(spec).pop(_WAITING, [])
    plain = vars(spec).pop(_PLAIN, None)
    if plain is not None:
        object.__setattr__(spec, "__class__", plain)
    for report in waiting:
        report()
