"""The import hook: each module that is watched is reported once it has been executed.

It stays armed until it is taken out, and serves reloads and second imports as well (wrapt's hooks fire once,
and are lost when one of them raises). A module that is being executed when the hook arrives is reported when
that is done. A module that is run instead of imported is reported before its block for `__main__`
(`main_module`).

Most processes of a job never import an upstream. So the finder of an engine first waits for the packages that
patches are for, and only then is told which modules to watch.
"""

from __future__ import annotations

import _imp
import _thread
import os
import sys
from contextlib import contextmanager, suppress

from overlay.runtime.loader import HookedLoader, admit_refused, spec_of, when_executed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _frozen_importlib import ModuleSpec
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType, ModuleType
    from typing import Any

    from overlay.runtime.loader import Imported


@contextmanager
def _import_lock() -> Iterator[None]:
    """Hold the lock that Python holds while it asks a finder, which may change the path."""
    _imp.acquire_lock()
    try:
        yield
    finally:
        _imp.release_lock()


class WatchingFinder:
    """A meta path finder that finds nothing itself, and watches a set of module names."""

    #: Marks the engine's own finders, which it leaves out when it looks for sources.
    overlay_finder = True
    #: Whether it finds nothing any more, and stands in the path only until another one does.
    is_out = False

    def __init__(self, names: frozenset[str], imported: Imported) -> None:
        self._names = names
        self._imported = imported
        self._asking: set[tuple[int, str]] = set()
        #: Modules that a hooked loader has come to execute: they will be reported.
        self._hooked: set[str] = set()
        #: Modules that were being executed when they were met: they will be reported too.
        self._awaited: dict[str, object] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a watched module by way of the other finders, and hook its loader."""
        key = (_thread.get_ident(), fullname)
        # A finder that asks all others again, as wrapt's does, asks this one too.
        if fullname not in self._names or key in self._asking or self.is_out:
            return None
        self._asking.add(key)
        try:
            for finder in list(sys.meta_path):
                find_spec = None if finder is self else getattr(finder, "find_spec", None)
                spec: ModuleSpec | None = find_spec(fullname, path, target) if find_spec else None
                if spec is not None:
                    break
            else:
                return None
        finally:
            self._asking.discard(key)
        # A lazy one executes the module later, by the loader that it has.
        lazy = getattr(sys.modules.get("importlib.util"), "LazyLoader", ())
        owner: Any = spec.loader if isinstance(spec.loader, lazy) else spec
        if hasattr(owner.loader, "exec_module"):
            owner.loader = HookedLoader(owner.loader, fullname, self._imported, self._hooked)
        return spec

    def has_met(self, name: str) -> bool:
        """Return whether the hook reports a module, now or when it has been executed."""
        return name in self._awaited or self._is_hooked(name, spec_of(sys.modules.get(name)))

    def _is_hooked(self, name: str, spec: ModuleSpec | None) -> bool:
        """Return whether a hooked loader reports a module: its own, or that behind a `LazyLoader`."""
        loader = getattr(spec, "loader", None)
        own = isinstance(loader, HookedLoader) or isinstance(getattr(loader, "loader", None), HookedLoader)
        return own or name in self._hooked

    def has_executed(self, name: str, module: object) -> bool:
        """Return whether an imported module has been executed. If not, see to it that it is reported then."""
        spec = spec_of(module)
        hooked = self._is_hooked(name, spec)
        if hooked and type(module).__module__ == "importlib.util":
            return False  # of a `LazyLoader`: it is executed when somebody takes a name from it
        if not getattr(spec, "_initializing", False):
            return True
        # A circular import, say. If the hook has seen it, another thread is importing it, and it is reported.
        if spec is not None and not hooked and self._awaited.get(name) is not module:
            self._awaited[name] = module
            when_executed(spec, name, self._imported)
        return False

    def install(self) -> None:
        """Stand in front of all other finders."""
        # In the list that is there, for whoever holds it, and in one step, for a thread that walks along it.
        with _import_lock():
            if self.is_out:  # another thread has removed it in the meantime
                return
            others = [finder for finder in sys.meta_path if finder is not self]
            if len(others) == len(sys.meta_path):  # the list stays as long as it is, as in `remove`
                out = [one for one in others if isinstance(one, WatchingFinder) and one.is_out]
                others = [one for one in others if one not in out[:1]]
            sys.meta_path[:] = [self, *others]

    def remove(self) -> None:
        """Find nothing any more, and leave the path, but not under a thread that may walk along it.

        That thread would miss the next finder, and with it a module that is there.
        """
        with _import_lock():
            self.is_out = True
            if len(sys._current_frames()) == 1:  # noqa: SLF001 -- no other thread
                sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]


class FirstFinder(WatchingFinder):
    """The finder of an engine: it waits for an upstream, stays in front, and looks at what is run."""

    def __init__(self, packages: frozenset[str], wake: Callable[[], None], *, at_start: bool = False) -> None:
        """Wait for an upstream, whose top-level package is one of `packages`, or for nothing.

        `wake` is called before the upstream's first module is found, until there are no `packages` any more.
        `at_start`: what runs as `__main__` has imported nothing yet.
        """
        super().__init__(frozenset(), lambda *_: None)
        self.packages = packages
        self.wake = wake
        self._passed: Callable[[], None] = lambda: None
        #: Files that run as `__main__`, and their namespaces, that have been looked at. The caller asks about
        #: what runs now.
        self._looked: set[tuple[object, int]] = set()
        if not at_start:
            main = space_of_main()
            self._looked.add((main.get("__file__"), id(main)))

    def watch(self, names: frozenset[str], imported: Imported, passed: Callable[[], None]) -> None:
        """Watch modules. `passed` is called if another finder has stood in front: it may have found one."""
        self._names, self._imported, self._passed = names, imported, passed
        # Now: a thread that wakes waits for this one, which may come to wait for that thread's import.
        self.packages = frozenset()
        self.install()

    def wait_for(self, packages: frozenset[str]) -> None:
        """Wait for the first module of some packages, which may be there already."""
        self.packages = packages
        if self.missed():
            self.wake()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a watched module. Wake first if it is time, and look whether a watched module is run."""
        if self.is_out:
            return None
        moved = sys.meta_path[0] is not self and self in sys.meta_path
        if moved:
            self.install()  # another finder stands in front, and may find a watched module, or has
        space = space_of_main(sys._getframe(1))  # noqa: SLF001 -- who imports
        if self.packages:
            came = fullname.partition(".")[0] in self.packages or (moved and self.missed())
            if came or (not self._names and runs_one_of(self.packages, space)):
                without_import_lock(self.wake)
        if moved and self._names:
            without_import_lock(self._passed)
        if self._names:
            self._look_at_main(space)
        return super().find_spec(fullname, path, target)

    def missed(self) -> list[str]:
        """Return the packages waited for that were imported without a word to this finder."""
        there = {name.partition(".")[0] for name in [*sys.modules] if sys.modules.get(name) is not None}
        return sorted(self.packages & there)

    def _look_at_main(self, space: dict[str, Any]) -> None:
        """Report a watched module that is run, with `None` for it, if its code will never report it."""
        key = space.get("__file__"), id(space)
        if key[0] is None or key in self._looked:
            return
        self._looked.add(key)  # first: what follows imports modules, and comes here again
        try:
            without_import_lock(lambda: self._report(space))
        except BaseException:
            self._looked.remove(key)  # the next import fails again
            raise

    def _report(self, space: dict[str, Any]) -> None:
        name, silent = self.running(space)
        if name and silent:
            self._imported(name, None)

    def running(self, space: dict[str, Any]) -> tuple[str, bool]:
        """Return the name of a watched module that runs in `space`, and whether its code never reports it.

        The name is empty if there is none, or if its code is about to report it.
        """
        file = space.get("__file__")
        if not isinstance(file, str) or not (self._may_be(file) or space.get("__spec__") is not None):
            return "", False
        from overlay.runtime.main_module import running

        return running(space, _real(file), self._names, self._imported)

    def _may_be(self, path: str) -> bool:
        stem = os.path.splitext(os.path.basename(_real(path)))[0]
        return any(name.rpartition(".")[2] == stem for name in self._names)

    def _script(self, path: str) -> Any:
        """Find a watched module that is run as a script (a path hook)."""
        if _lies_in(path, self.packages) or _lies_in(_real(path), self.packages):
            without_import_lock(self.wake)
        if self._may_be(path) and not path.endswith(".pyc"):  # there is nothing to insert a call into
            without_import_lock(_load_main_module)
            from overlay.runtime.main_module import Script, name_of

            if name := name_of(_real(path), self._names):
                return Script(path, name, self._imported)
        raise ImportError(path)

    def install(self) -> None:
        """Stand in front of all other finders, and of scripts."""
        if self._script not in sys.path_hooks and not self.is_out:
            sys.path_hooks.append(self._script)
        super().install()

    def remove(self) -> None:
        """Leave the path, and the path hooks. Modules that were refused can be used again."""
        admit_refused()
        super().remove()
        sys.path_hooks[:] = [hook for hook in sys.path_hooks if hook != self._script]
        for path, found in list(sys.path_importer_cache.items()):
            if getattr(found, "imported", None) == self._imported:  # a `Script` of this finder
                del sys.path_importer_cache[path]
        self._imported, self._passed, self.wake = (lambda *_: None), (lambda: None), (lambda: None)


def space_of_main(frame: FrameType | None = None) -> dict[str, Any]:
    """Return the namespace of what is run: that of the frame if it is `__main__`, else of `sys.modules`."""
    while frame is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    space = frame.f_globals if frame is not None else {}
    if space.get("__name__") == "__main__":
        return space
    found: dict[str, Any] = getattr(sys.modules.get("__main__"), "__dict__", {})
    return found


def runs_one_of(packages: frozenset[str], space: dict[str, Any]) -> bool:
    """Return whether what is run in a namespace is a file of one of these packages."""
    file, module = space.get("__file__"), getattr(space.get("__spec__"), "name", "")
    return (isinstance(file, str) and _lies_in(file, packages)) or module.partition(".")[0] in packages


def _load_main_module() -> None:
    from overlay.runtime import main_module  # noqa: F401


def without_import_lock(call: Callable[[], None]) -> None:
    """Call something while this thread does not hold the lock with which Python asks finders.

    It may wait for another thread, which needs that lock for what it imports.
    """
    held = 0
    try:
        with suppress(RuntimeError):  # it is not held, or no more
            while True:
                _imp.release_lock()
                held += 1
        call()
    finally:
        for _ in range(held):
            _imp.acquire_lock()


def _lies_in(file: str, packages: frozenset[str]) -> bool:
    return not packages.isdisjoint(_real(file, os.path.abspath).split(os.sep))


def _real(path: str, resolved: Callable[[str], str] = os.path.realpath) -> str:
    """Return a path with the links in it followed, or the path itself if the current folder is gone."""
    try:
        return resolved(path)
    except OSError:
        return path
