"""A watched module is reported as soon as it has been executed: by its loader, or by its spec."""

from __future__ import annotations

import sys
from _frozen_importlib import ModuleSpec  # from `importlib` it would take three more files to load
from _weakref import ref
from contextlib import suppress

from overlay.errors import OverlayError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType, ModuleType
    from typing import Any

    #: Called with the name under which a module was imported, and the module.
    Imported = Callable[[str, object], None]


class HookedLoader:
    """The loader of one module, which reports it when it has been executed.

    It stands in for the real loader only until then: modules keep the loader that they would have had.
    """

    def __init__(self, loader: Any, name: str, imported: Imported, hooked: set[str]) -> None:
        #: The loader that the module would have had.
        self.real = loader
        self._name = name
        self._imported = imported
        self._hooked = hooked

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copying and pickling ask for these before `real` is set
            raise AttributeError(name)
        return getattr(self.real, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module as the real loader does."""
        create = getattr(self.real, "create_module", None)
        module: ModuleType | None = create(spec) if create else None
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module, then report it."""
        self._hooked.add(self._name)
        spec = spec_of(module)
        if spec is not None and not _is_run_next(self._name):
            spec.loader = self.real
        module.__loader__ = self.real
        self.real.exec_module(module)
        # A module may have put another one in its place.
        found = sys.modules.get(self._name, module)
        try:
            self._imported(self._name, found)
        except OverlayError as error:
            if found is module and getattr(spec, "_initializing", False):  # else it was there before
                _refuse(found, error)
            raise

    def get_code(self, name: str) -> CodeType | None:
        """Return the code by which the module is run as `__main__`, and reported."""
        plain: CodeType | None = self.real.get_code(name)
        if plain is None or not hasattr(self.real, "get_source"):
            return plain
        from overlay.runtime.main_module import code

        return code(self, self._name, self.real.get_source(name), plain, self._imported)

    def load_module(self, name: str) -> Any:
        """Load the module in the way that importlib has deprecated, and report it."""
        self._hooked.add(self._name)
        module = self.real.load_module(name)
        self._imported(self._name, module)
        return module


def _is_run_next(name: str) -> bool:
    """Return whether a module is about to be run as `__main__` too, by code that its spec's loader has.

    `runpy` imports the package of a module first, which may import the module.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 -- who imports it
    while frame is not None and not (
        frame.f_globals.get("__name__") == "runpy" and frame.f_locals.get("mod_name") == name
    ):
        frame = frame.f_back
    return frame is not None or any(word.endswith(name) for word in sys.orig_argv)


def when_executed(spec: ModuleSpec, name: str, imported: Imported) -> None:
    """Report a module that is being executed as soon as it is done.

    The import system ends by clearing a flag on the module's spec, and tells nobody. The spec gets a class
    that listens for that, and has its own class back afterwards.
    """
    plain = type(spec)

    class ListeningSpec(plain):  # type: ignore[misc, valid-type]
        def __setattr__(self, attribute: str, value: object) -> None:
            if attribute != "_initializing" or value:
                super().__setattr__(attribute, value)
                return
            object.__setattr__(self, "__class__", plain)
            setattr(self, attribute, value)  # which may be another one that listens
            found = sys.modules.get(name)
            if found is None:
                return  # its execution failed
            try:
                imported(name, found)
            except BaseException as error:
                # The import fails, as from a loader, and must fail again when it is tried again.
                sys.modules.pop(name, None)
                if isinstance(error, OverlayError):
                    _refuse(found, error)
                raise

    spec.__class__ = ListeningSpec
    if not getattr(spec, "_initializing", False):
        # Another thread came to the end of it in the meantime.
        setattr(spec, "_initializing", False)  # noqa: B010 -- which has no such attribute, as far as types go


#: Modules that were refused, each with the class that it had, and the error.
_refused: list[tuple[Any, type, ref[OverlayError]]] = []


def _refuse(module: object, error: OverlayError) -> None:
    """Let whoever takes a name from a module that was refused as it was imported get the error as well.

    Python hands the module to a thread that waits for the import, even if that fails.
    """

    class Refused(type(sys)):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:
            if name.startswith("__"):
                return super().__getattribute__(name)
            raise type(error)(*error.args)

    plain = type(module)
    with suppress(TypeError):  # it is no module, or of a class with a layout of its own
        module.__class__ = Refused
        _refused.append((module, plain, ref(error)))


def admit_refused() -> None:
    """Let modules that were refused be used again, and let go of them: a notebook keeps the last error."""
    while _refused:
        module, plain, error = _refused.pop()
        module.__class__ = plain
        _cut(error())


def _cut(error: BaseException | None) -> None:
    """Cut off an error's traceback where an import begins: the calls below have the module."""
    step = error.__traceback__ if error is not None else None
    while step is not None:
        name = str(step.tb_next.tb_frame.f_globals.get("__name__")) if step.tb_next is not None else ""
        if name.startswith(("importlib._", "_frozen_importlib", "overlay.")):
            step.tb_next = None
        step = step.tb_next
    while error is not None and error.__context__ is not None:
        error = error.__context__
        error.__traceback__ = None


def spec_of(module: object) -> ModuleSpec | None:
    """Return the spec of a module without asking a stranger's `__getattr__`."""
    try:
        spec = object.__getattribute__(module, "__dict__").get("__spec__")
    except AttributeError:
        return None
    return spec if isinstance(spec, ModuleSpec) else None
