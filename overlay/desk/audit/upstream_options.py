"""The options of an upstream and their defaults, read in its source, which is never run.

Any other setting in a file is a slip, or for another release.
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

#: Stands for a default that is no constant in the source.
_COMPUTED = Open("computed")
#: The same of an option that is on or off.
SWITCH = Open("computed, on or off")


def options(dialect: Dialect, read: ReadFile) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the options by key, each with its default or an `Open`, and the files that were not read.

    Each file comes with the reason, which is empty if the file is not there.
    """
    found: dict[str, Any] = {}
    missing = {}
    for path in dialect.sources:
        try:
            text = read(path)
            if text:
                found = {**_in_file(path, text), **found}
            else:
                missing[path] = ""
        except (SyntaxError, ValueError, RecursionError, OverlayError) as error:  # noqa: PERF203 -- each by itself
            missing[path] = str(error)
    return found, missing


@lru_cache(maxsize=32)
def _in_file(path: str, text: str) -> dict[str, Any]:
    return dict(_declared(ast.parse(text))) if path.endswith(".py") else in_yaml(text, path)


def _declared(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """Yield the options that a parser is given, and the fields of classes: some parsers are made of these."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            # A call of `add_argument`, or of what wraps it.
            said = {word.arg: _constant(word.value) for word in node.keywords}
            switch = said.get("action") in ("store_true", "store_false")
            default = False if switch else said.get("default")
            yield from ((flag, default) for flag in _flags(*node.args))
        for inner in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
                # The default does not count: an upstream may override it when it makes its configuration.
                default = SWITCH if ast.unparse(inner.annotation) == "bool" else _COMPUTED
                yield inner.target.id, default
                # The flags of a field may have other names.
                named = ast.walk(inner.value) if inner.value is not None else ()
                yield from ((flag, default) for flag in _flags(*named))


def _flags(*nodes: ast.AST) -> Iterator[str]:
    for one in map(_constant, nodes):
        if isinstance(one, str) and re.fullmatch(r"--\w[\w-]*", one):
            yield one[2:].replace("-", "_")


def _constant(node: ast.AST) -> Any:
    """Return the constant that a node is, if it is one single value."""
    try:
        found = ast.literal_eval(node)
    except (ValueError, TypeError):
        return _COMPUTED
    return _COMPUTED if isinstance(found, (list, tuple, set, dict)) else found
