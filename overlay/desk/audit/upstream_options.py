"""The options that an upstream has, and their defaults, read in its own source and never run.

What a file of settings names beside these is a slip, or for another release.
"""

from __future__ import annotations

import ast
import re
from functools import lru_cache

from overlay.desk.audit.settings_file import in_yaml
from overlay.errors import OverlayError
from overlay.model.record import TYPE_CHECKING
from overlay.source.conditions import Open

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from overlay.defect import Dialect
    from overlay.patch import ReadFile

#: Stands for a default that the source has no constant for.
_COMPUTED = Open("computed")


def options(dialect: Dialect, read: ReadFile) -> tuple[dict[str, Any], list[str]]:
    """Return the options by key, each with its default or an `Open`, and the files that are not there."""
    found: dict[str, Any] = {}
    missing = []
    for path in dialect.sources:
        try:
            text = read(path)
            inside = None if text is None else _in_file(path, text)
        except (SyntaxError, ValueError, RecursionError, OverlayError):
            inside = None
        if inside is None:
            missing.append(path)
        else:
            found = {**inside, **found}
    return found, missing


@lru_cache(maxsize=32)
def _in_file(path: str, text: str) -> dict[str, Any]:
    return dict(_declared(ast.parse(text))) if path.endswith(".py") else in_yaml(text, path)


def _declared(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """Yield what a parser is given, and the fields of classes, which some make their options of."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from _added(node)
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
                    # An upstream may set it otherwise where it makes its configuration.
                    yield inner.target.id, _COMPUTED
                    # Its flags, where they are not called like the field.
                    for one in ast.walk(inner.value) if inner.value is not None else ():
                        if _is_flag(_constant(one)):
                            yield _constant(one)[2:].replace("-", "_"), _COMPUTED


def _added(call: ast.Call) -> Iterator[tuple[str, Any]]:
    """Yield the flags that a call names first, as `add_argument` and what wraps it do."""
    said = {word.arg: word.value for word in call.keywords}
    action = _constant(said.get("action"))
    default = False if action in ("store_true", "store_false") else None
    if "default" in said and default is None:
        default = _constant(said["default"])
    for argument in call.args:
        flag = _constant(argument)
        if _is_flag(flag):
            yield flag[2:].replace("-", "_"), default


def _is_flag(one: object) -> bool:
    return isinstance(one, str) and re.fullmatch(r"--\w[\w-]*", one) is not None


def _constant(node: ast.AST | None) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if (
        isinstance(node, ast.UnaryOp)
        and isinstance(node.op, ast.USub)
        and isinstance(node.operand, ast.Constant)
    ):
        return -node.operand.value if isinstance(node.operand.value, (int, float)) else _COMPUTED
    return _COMPUTED
