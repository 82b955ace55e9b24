"""Mutants that take away exactly what a condition asks for: none of them may be applied to.

Each takes a copy of the function or data class that is relied on, and the condition, and changes the former
in place. It returns what takes its place in its suite.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from overlay.patch import Calls
from tortures._mutations import DECORATOR

if TYPE_CHECKING:
    from collections.abc import Callable

    Breaking = Callable[[Any, Any], list[ast.stmt]]


# Of both ---------------------------------------------------------------------------------------------------


def _beside(before: str, after: str) -> Breaking:
    """Return a mutation that puts statements of the module above what is relied on, and below it."""

    def breaking(node: Any, condition: Any) -> list[ast.stmt]:
        words = {"name": node.name, "field": "" if isinstance(condition, Calls) else condition.names[-1]}
        return [*ast.parse(before.format(**words)).body, node, *ast.parse(after.format(**words)).body]

    return breaking


def _guarded(node: Any, _condition: Any) -> list[ast.stmt]:
    return [ast.If(ast.Constant(True), [node], [])]  # noqa: FBT003


_BOUND_AGAIN = _beside("", f"{{name}} = {DECORATOR}({{name}})")
_STAR = _beside("", "from builtins import *")


# Of `Calls` ------------------------------------------------------------------------------------------------


def _call_at(function: ast.FunctionDef, condition: Calls) -> int:
    """Return the place of the statement that calls what is asked for."""
    return next(
        place
        for place, node in enumerate(function.body)
        for part in ast.walk(node)
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id == condition.callee
    )


def _around_call(text: str) -> Breaking:
    """Return a mutation that puts the statement of the call where `call` stands in a text."""

    def breaking(function: ast.FunctionDef, condition: Calls) -> list[ast.stmt]:
        place = _call_at(function, condition)
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


def _before_call(text: str) -> Breaking:
    """Return a mutation that puts statements before the one of the call."""

    def breaking(function: ast.FunctionDef, condition: Calls) -> list[ast.stmt]:
        place = _call_at(function, condition)
        function.body[place:place] = ast.parse(text.format(callee=condition.callee)).body
        return [function]

    return breaking


def _removed(function: ast.FunctionDef, condition: Calls) -> list[ast.stmt]:
    function.body[_call_at(function, condition)] = ast.Pass()
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
    function.body.append(function.body[_call_at(function, condition)])
    return [function]


def _decorated(function: ast.FunctionDef, condition: Calls) -> list[ast.stmt]:
    del condition
    function.decorator_list.append(ast.Name(DECORATOR, ast.Load()))
    return [function]


def _parameter(function: ast.FunctionDef, condition: Calls) -> list[ast.stmt]:
    function.args.kwonlyargs.append(ast.arg(condition.callee))
    function.args.kw_defaults.append(ast.Name("print", ast.Load()))
    return [function]


#: Kinds of mutants that break any `Calls`, and those that break one with `last`.
CALLS: dict[str, Breaking] = {
    "call removed": _removed,
    "call of another": _other,
    "call under if": _around_call("if 1 > 0:\n    call"),
    "call in a loop": _around_call("for _ in ():\n    call"),
    "call in a try": _around_call("try:\n    call\nexcept Exception:\n    pass"),
    "call in a function": _around_call("def _mutant():\n    call\n_mutant()"),
    "return before": _before_call("if print() is None:\n    return None"),
    "return in finally": _before_call("try:\n    print()\nfinally:\n    if 1 > 0:\n        return None"),
    "name bound inside": _before_call("{callee} = print"),
    "name imported": _before_call("from builtins import print as {callee}"),
    "name a parameter": _parameter,
    "made a generator": _before_call("yield None"),
    "relied on, decorated": _decorated,
    "relied on, bound again": _BOUND_AGAIN,
    "relied on, under if": _guarded,
    "star import below": _STAR,
}
LAST: dict[str, Breaking] = {"statement after": _later, "call repeated": _again}


def breaking(condition: Calls) -> dict[str, Breaking]:
    """Return the kinds of mutants that break a condition."""
    return {**CALLS, **(LAST if condition.last else {})}
