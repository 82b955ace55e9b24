"""What is asked of one source. Each answer is plain data, and a function of the text of that source alone.

So an answer that was found once is right for whoever has the very same text, whatever lies beside it. Where
a name comes from another module, the answer is what the import says, and not what it means.
"""

from __future__ import annotations

import ast

from overlay.reading.bindings import Module, find
from overlay.reading.calls import does_not_call
from overlay.reading.digest import digest
from overlay.reading.fields import lacks_fields
from overlay.reading.fingerprint import of_parsed
from overlay.reading.shape import bindings, doubt, exists, shape, star_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    #: What JSON can hold.
    Answer = bool | str | list[str] | list[object] | None

#: Modules whose code finds the answers.
CODE = (
    "overlay.reading.questions",
    "overlay.reading.bindings",
    "overlay.reading.definition",
    "overlay.reading.digest",
    "overlay.reading.fields",
    "overlay.reading.fingerprint",
    "overlay.reading.calls",
    "overlay.reading.shape",
)


def _digest(module: Module, name: str) -> Answer:
    """Return the digest of a site, `None` if there is no such site."""
    parts = shape(module, name) if name else [module.tree]
    return digest(parts) if parts else None


def _star(module: Module, name: str) -> Answer:
    """Return the first star import that may bind a name again, empty if there is none."""
    return star_of(bindings(module, name)) if name else ""


def _decorators(module: Module, name: str) -> Answer:
    """Return the decorators of the functions that a name is bound to."""
    nodes = bindings(module, name) if name else []
    return [
        ast.unparse(decorator)
        for node in nodes
        if not isinstance(node, ast.ClassDef)
        for decorator in getattr(node, "decorator_list", ())
    ]


def _imported(module: Module, name: str) -> Answer:
    """Return the level, the module and the name of the `from` import that alone binds a name."""
    nodes = bindings(module, name) if name else []
    if len(nodes) != 1 or not isinstance(nodes[0], ast.ImportFrom):
        return None
    imported = nodes[0]
    return [imported.level, imported.module or "", imported.names[0].name]


def _calls(module: Module, name: str, callee: str, last: str) -> Answer:
    """Return why a function does not call another one, empty if it does."""
    return does_not_call(find(module, name), callee, last=bool(last))


def _fields(module: Module, name: str, names: str, default: str) -> Answer:
    """Return why a class does not have fields, empty if it does."""
    return lacks_fields(module, name, names.split(","), default)


def _prints(module: Module, name: str) -> Answer:
    """Return the fingerprints of what a definition compiles to."""
    return [*of_parsed(module.tree, name)]


_QUESTIONS: dict[str, Callable[..., Answer]] = {
    "calls": _calls,
    "decorators": _decorators,
    "digest": _digest,
    "doubt": doubt,
    "fields": _fields,
    "has": exists,
    "imported": _imported,
    "prints": _prints,
    "star": _star,
}
#: What depends on the Python that answers.
OF_PYTHON = "prints"


def answer(question: tuple[str, ...], module: Module | None) -> Answer:
    """Return the answer to a question: its kind, a qualified name, and what else the kind asks for.

    Where there is no such module, `None`, that is an answer like any other: there is no name in it.
    """
    kind, name, *more = question
    if module is None:
        return None if kind == "digest" else answer(question, Module(ast.Module([], [])))
    return _QUESTIONS[kind](module, name, *more)
