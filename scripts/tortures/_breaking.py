"""Mutants that take away exactly what a condition asks for: none of them may be applied to.

Each takes a copy of the function that is relied on, and the condition, and changes the function in place. It
returns what takes its place in its suite.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tortures._mutations import DECORATOR

if TYPE_CHECKING:
    from collections.abc import Callable

    from overlay.patch import Calls

    Breaking = Callable[[ast.FunctionDef, Calls], list[ast.stmt]]


def _place(function: ast.FunctionDef, condition: Calls) -> int:
    """Return the place of the statement that calls what is asked for."""
    return next(
        place
        for place, node in enumerate(function.body)
        for part in ast.walk(node)
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id == condition.callee
    )


def _around(text: str) -> Breaking:
    """Return a mutation that puts the statement of the call where `call` stands in a text."""

    def breaking(function: ast.FunctionDef, condition: Calls) -> list[ast.stmt]:
        place = _place(function, condition)
        made = ast.parse(text).body
        for node in made:
            for part in ast.walk(node):
                for name in ("body", "orelse", "finalbody"):
                    suite = getattr(part, name, None)
                    for at, item in enumerate(suite if isinstance(suite, list) else ()):
                        if isinstance(item, ast.Expr) and ast.unparse(item) == "call":
                            suite[at] = function.body[place]  # type: ignore[index]
        function.body[place : place + 1] = made
        return [function]

    return breaking


def _before(text: str) -> Breaking:
    """Return a mutation that puts statements before the one of the call."""

    def breaking(function: ast.FunctionDef, condition: Calls) -> list[ast.stmt]:
        place = _place(function, condition)
        function.body[place:place] = ast.parse(text.format(callee=condition.callee)).body
        return [function]

    return breaking


def _removed(function: ast.FunctionDef, condition: Calls) -> list[ast.stmt]:
    function.body[_place(function, condition)] = ast.Pass()
    return [function]


def _other(function: ast.FunctionDef, condition: Calls) -> list[ast.stmt]:
    for part in ast.walk(function):
        if isinstance(part, ast.Name) and part.id == condition.callee:
            part.id = "print"
    return [function]


def _later(function: ast.FunctionDef, condition: Calls) -> list[ast.stmt]:
    del condition
    function.body.append(ast.parse("print()").body[0])
    return [function]


def _again(function: ast.FunctionDef, condition: Calls) -> list[ast.stmt]:
    function.body.append(function.body[_place(function, condition)])
    return [function]


def _decorated(function: ast.FunctionDef, condition: Calls) -> list[ast.stmt]:
    del condition
    function.decorator_list.append(ast.Name(DECORATOR, ast.Load()))
    return [function]


def _bound_again(function: ast.FunctionDef, condition: Calls) -> list[ast.stmt]:
    del condition
    return [function, *ast.parse(f"{function.name} = {DECORATOR}({function.name})").body]


def _star(function: ast.FunctionDef, condition: Calls) -> list[ast.stmt]:
    del condition
    return [function, *ast.parse("from builtins import *").body]


def _guarded(function: ast.FunctionDef, condition: Calls) -> list[ast.stmt]:
    del condition
    return [ast.If(ast.Constant(True), [function], [])]  # noqa: FBT003


def _parameter(function: ast.FunctionDef, condition: Calls) -> list[ast.stmt]:
    function.args.kwonlyargs.append(ast.arg(condition.callee))
    function.args.kw_defaults.append(ast.Name("print", ast.Load()))
    return [function]


#: Kinds of mutants that break any `Calls`, and those that break one with `last`.
CALLS: dict[str, Breaking] = {
    "call removed": _removed,
    "call of another": _other,
    "call under if": _around("if 1 > 0:\n    call"),
    "call in a loop": _around("for _ in ():\n    call"),
    "call in a try": _around("try:\n    call\nexcept Exception:\n    pass"),
    "call in a function": _around("def _mutant():\n    call\n_mutant()"),
    "return before": _before("if print() is None:\n    return None"),
    "return in finally": _before("try:\n    print()\nfinally:\n    if 1 > 0:\n        return None"),
    "name bound inside": _before("{callee} = print"),
    "name imported": _before("from builtins import print as {callee}"),
    "name a parameter": _parameter,
    "made a generator": _before("yield None"),
    "relied on, decorated": _decorated,
    "relied on, bound again": _bound_again,
    "relied on, under if": _guarded,
    "star import below": _star,
}
LAST: dict[str, Breaking] = {"statement after": _later, "call repeated": _again}


def breaking(condition: Calls) -> dict[str, Breaking]:
    """Return the kinds of mutants that break a condition."""
    return {**CALLS, **(LAST if condition.last else {})}
