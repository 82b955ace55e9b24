"""Mutants that take a field away, or what an instance has under it: none of them may be applied to.

Each takes a copy of the data class that is relied on, and the condition, and changes the class in place. It
returns what takes its place in its suite.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tortures._mutations import DECORATOR

if TYPE_CHECKING:
    from collections.abc import Callable

    from overlay.patch import Fields

    Breaking = Callable[[ast.ClassDef, Fields], list[ast.stmt]]


def _place(made: ast.ClassDef, condition: Fields) -> int:
    """Return the place of the last field that is asked for."""
    return next(
        place
        for place, node in enumerate(made.body)
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and node.target.id == condition.names[-1]
    )


def _instead(text: str) -> Breaking:
    """Return a mutation that puts something else in the place of the field `field`, annotated with `kind`."""

    def breaking(made: ast.ClassDef, condition: Fields) -> list[ast.stmt]:
        place = _place(made, condition)
        field = made.body[place]
        assert isinstance(field, ast.AnnAssign)
        text_of = {"field": condition.names[-1], "kind": ast.unparse(field.annotation)}
        made.body[place : place + 1] = ast.parse(text.format(**text_of)).body
        return [made]

    return breaking


def _below(text: str) -> Breaking:
    """Return a mutation that puts statements at the end of the class."""

    def breaking(made: ast.ClassDef, condition: Fields) -> list[ast.stmt]:
        made.body += ast.parse(text.format(field=condition.names[-1])).body
        return [made]

    return breaking


def _around(before: str, after: str) -> Breaking:
    """Return a mutation that puts statements of the module above the class, and below it."""

    def breaking(made: ast.ClassDef, condition: Fields) -> list[ast.stmt]:
        words = {"name": made.name, "field": condition.names[-1]}
        return [*ast.parse(before.format(**words)).body, made, *ast.parse(after.format(**words)).body]

    return breaking


def _with_decorators(*texts: str) -> Breaking:
    """Return a mutation that gives the class other decorators: `made` stands for those that it has."""

    def breaking(made: ast.ClassDef, condition: Fields) -> list[ast.stmt]:
        del condition
        had = made.decorator_list
        made.decorator_list = []
        for text in texts:
            made.decorator_list += had if text == "made" else [ast.parse(text, mode="eval").body]
        return [made]

    return breaking


def _with_base(made: ast.ClassDef, condition: Fields) -> list[ast.stmt]:
    del condition
    made.bases.append(ast.Name("dict", ast.Load()))
    return [made]


def _with_metaclass(made: ast.ClassDef, condition: Fields) -> list[ast.stmt]:
    del condition
    made.keywords.append(ast.keyword("metaclass", ast.Name("type", ast.Load())))
    return [made]


def _guarded(made: ast.ClassDef, condition: Fields) -> list[ast.stmt]:
    del condition
    return [ast.If(ast.Constant(True), [made], [])]  # noqa: FBT003


_POST = "def __post_init__(self):\n    "

#: Kinds of mutants that break any `Fields`, and those that break one that asks for a default.
FIELDS: dict[str, Breaking] = {
    "field removed": _instead("pass"),
    "field renamed": _instead("_mutant: {kind} = None"),
    "field not annotated": _instead("{field} = None"),
    "field of the class": _instead("{field}: ClassVar[{kind}] = None"),
    "field not given": _instead("{field}: {kind} = field(default=None, init=False)"),
    "field a property": _instead("@property\ndef {field}(self):\n    return None"),
    "field under if": _instead("if 1 > 0:\n    {field}: {kind} = None"),
    "field bound below": _below("{field} = property(print)"),
    "field set later": _below(f"{_POST}self.{{field}} = None"),
    "field set by name": _below(f"{_POST}setattr(self, '{{field}}', None)"),
    "field set by object": _below(f"{_POST}object.__setattr__(self, '{{field}}', None)"),
    "field set in the dictionary": _below(f"{_POST}self.__dict__['{{field}}'] = None"),
    "field read otherwise": _below("def __getattribute__(self, name):\n    return None"),
    "constructor of its own": _below("def __init__(self, *args, **kwargs):\n    pass"),
    "another instance": _below("def __new__(cls, *args, **kwargs):\n    return None"),
    "no constructor": _with_decorators("dataclass(init=False)"),
    "no data class": _with_decorators(),
    "class decorated": _with_decorators(DECORATOR, "made"),
    "class with a base": _with_base,
    "class with a metaclass": _with_metaclass,
    "class under if": _guarded,
    "class bound again": _around("", f"{{name}} = {DECORATOR}({{name}})"),
    "field set from outside": _around("", "{name}.{field} = property(print)"),
    "dataclass bound again": _around("dataclass = print", ""),
    "star import below the class": _around("", "from builtins import *"),
}
DEFAULT: dict[str, Breaking] = {
    "another default": _instead("{field}: {kind} = 1"),
    "default removed": _instead("{field}: {kind}"),
}


def breaking(condition: Fields) -> dict[str, Breaking]:
    """Return the kinds of mutants that break a condition."""
    return {**FIELDS, **(DEFAULT if condition.default else {})}
