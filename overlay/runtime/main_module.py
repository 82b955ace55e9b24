"""A module that is run: `python -m X` and `python path/to/x.py` execute it as `__main__` and import nothing.

Whoever runs a module asks a loader for its code. The code that it gets here makes one more call, between
what the module defines and the block for `__main__`: there the module is reported, as after an import. Line
numbers and file stay as they are. Code that comes from elsewhere (a debugger that compiles a script itself)
reports nothing; `running` finds the module that it runs.
"""

from __future__ import annotations

import ast
import os
import sys
from _frozen_importlib import ModuleSpec
from collections.abc import Callable, Iterable
from importlib.machinery import SourceFileLoader
from types import CodeType, FrameType
from typing import Any

from overlay.runtime.unpickled import look_for_plain
from overlay.source.unwarned import parse, unwarned

Imported = Callable[[str, object], None]


#: Code that was handed out: name of the module, loader, whom to tell.
_made: dict[CodeType, tuple[str, Any, Imported]] = {}
#: The id of the frame in which such code has reported its module. A debugger runs it more than once.
_reported: dict[CodeType, int] = {}


def code(loader: Any, name: str, text: str | None, plain: CodeType, imported: Imported) -> CodeType:
    """Return the code of a module with a call that reports it, or `plain` if that cannot be made.

    `loader` hands the code out, and `loader.real` takes its place in the module once that is reported. `text`
    is the source of the module, and `plain` its code as the real loader has it.
    """
    if text is None:
        return plain
    file = plain.co_filename
    tree = parse(text, file)
    _insert(tree, _after_definitions(tree.body), "defined")
    if isinstance(loader, Script):
        _insert(tree, _prologue(tree.body), "started")
    with unwarned(file):
        made: CodeType = compile(tree, file, "exec", dont_inherit=True)
    if _parts(made) != _parts(plain):  # the compiled file is not of this source
        return plain
    _made[made] = (name, loader, imported)
    return made


def _parts(code: CodeType) -> list[CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, type(code))]


def _after_definitions(body: list[ast.stmt]) -> int:
    """Return the index of the block for `__main__`, or else of what follows the last definition."""
    definitions, blocks = list[int](), list[int]()
    for index, statement in enumerate(body):
        if isinstance(statement, (ast.AsyncFunctionDef, ast.ClassDef, ast.FunctionDef)):
            definitions.append(index)
            continue
        inside = [getattr(node, "id", getattr(node, "value", None)) for node in ast.walk(statement)]
        if "__name__" in inside and "__main__" in inside:
            blocks.append(index)
    first, last = (definitions[0], definitions[-1] + 1) if definitions else (-1, len(body))
    # One may stand before all definitions, and one, with what it runs, before others.
    behind = [index for index in blocks if index >= last] or [index for index in blocks if index > first]
    return behind[0] if behind else last


def _prologue(body: list[ast.stmt]) -> int:
    """Return the index of the first statement after the docstring and the imports of `__future__`."""
    for index, statement in enumerate(body):
        docstring = (
            not index and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        )
        if not docstring and not (isinstance(statement, ast.ImportFrom) and statement.module == "__future__"):
            return index
    return len(body)


def _insert(tree: ast.Module, index: int, function: str) -> None:
    """Insert a call of a function of this module. Line numbers stay as they are."""
    (statement,) = ast.parse(f"__import__({__name__!r}, None, None, ({function!r},)).{function}()").body
    beside = tree.body[min(index, len(tree.body) - 1)] if tree.body else statement
    for node in ast.walk(statement):
        ast.copy_location(node, beside)
    tree.body.insert(index, statement)


def defined() -> None:
    """Report the module whose code calls this."""
    frame = sys._getframe(1)  # noqa: SLF001 -- whose code it is
    name, loader, imported = _made[frame.f_code]
    _reported[frame.f_code] = id(frame)
    space, real = frame.f_globals, loader.real
    spec = space.get("__spec__")
    if space.get("__loader__") is loader:
        space["__loader__"] = real
    if spec is not None and spec.loader is loader:
        spec.loader = real
    module = sys.modules.get(space["__name__"])
    imported(name, module if getattr(module, "__dict__", None) is space else None)


def started() -> None:
    """Give a script, which runs as if it were an archive, the variables of a script."""
    frame = sys._getframe(1)  # noqa: SLF001 -- whose code it is
    space = frame.f_globals
    loader = space["__loader__"]
    space.update(__spec__=None, __cached__=None, __loader__=None)
    if loader.direct:
        space.update(__package__=None, __loader__=loader.real)


def name_of(path: str, names: Iterable[str]) -> str:
    """Return which of some modules a file is by its path without links, empty if none."""
    stem = os.path.splitext(path)[0]
    return next((name for name in names if stem.endswith(os.sep + name.replace(".", os.sep))), "")


def _module_frame(frame: FrameType | None, space: dict[str, Any]) -> FrameType | None:
    """Return the frame behind another that runs a whole module in a namespace, `None` if there is none."""
    while frame is not None and not (frame.f_globals is space and frame.f_code.co_name == "<module>"):
        frame = frame.f_back
    return frame


def running(space: dict[str, Any], file: str, names: Iterable[str], imported: Imported) -> tuple[str, bool]:
    """Return which of some modules is run in a namespace, and whether its code never reports it.

    `file` is the path of that code, without links. The name is empty if it is none of them, or if its code is
    about to report it: to `imported`, from now on.
    """
    name = getattr(space.get("__spec__"), "name", "")
    if name not in names:
        name = name_of(file, names)
    codes = [code for code, made in _made.items() if made[0] == name]
    frame = _module_frame(sys._getframe(), space)  # noqa: SLF001 -- whose code runs
    if frame is None and space is not getattr(sys.modules.get("__main__"), "__dict__", None):
        others = sys._current_frames().values()  # noqa: SLF001 -- of other threads
        if not any(_module_frame(one, space) for one in others):
            if name:  # a function of another process, which was pickled by value
                look_for_plain(name, space)
            return "", False
    if frame is not None:
        waiting = [code for code in codes if code == frame.f_code and _reported.get(code) != id(frame)]
    else:  # in another thread, or not at all any more
        waiting = [code for code in codes if code not in _reported]
    for code in waiting:
        _made[code] = (*_made[code][:2], imported)
    own = bool(codes) if frame is None else frame.f_code in codes
    return ("", False) if waiting else (name, not own)


class Script:
    """Finds and loads a script that is a module of an upstream.

    The interpreter asks path hooks whether a script is an archive, and runs that by way of its loader.
    """

    def __init__(self, path: str, name: str, imported: Imported) -> None:
        self.real = SourceFileLoader("__main__", path)
        self._name = name
        self.imported = imported
        try:
            sys._getframe(2)  # noqa: SLF001 -- only if Python code asks the hook is there such a frame
            self._first = False
        except ValueError:
            self._first = True  # the interpreter itself asks, for `python path`
        #: Whether the interpreter itself runs it, and not `runpy.run_path`.
        self.direct = False

    def find_spec(self, name: str, _target: object = None) -> ModuleSpec | None:
        """Find the script, which is the one module in this archive."""
        return ModuleSpec(name, self, origin=self.real.path) if name == "__main__" else None  # type: ignore[arg-type]

    def get_code(self, name: str) -> CodeType:
        """Return its code, which reports it."""
        path = self.real.path
        self.direct, self._first = self._first, False
        if sys.path[:1] == [path]:
            folder = self.direct and not getattr(sys.flags, "safe_path", sys.flags.isolated)
            sys.path[:1] = [os.path.dirname(os.path.realpath(path))] if folder else []
        plain = self.real.source_to_code(self.real.get_data(path), path)
        return code(self, self._name, self.real.get_source(name), plain, self.imported)
