"""What a function that is relied on does, as far as its syntax tells: the conditions that ask for no digest.

Each answer is why a condition does not hold, empty if it does. What is odd in any way does not hold: a
decorator, a second binding, a definition under a condition, a name that is bound where it is looked up.
"""

from __future__ import annotations

import ast

from overlay.source.bindings import names_bound
from overlay.source.definition import defined

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from overlay.source.bindings import Found

#: What has statements of its own that do not run with those around them.
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
#: Decorators that leave the function what it is.
_PLAIN = ("staticmethod", "classmethod")
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_YIELDS = (ast.Yield, ast.YieldFrom)
#: Statements that are executed whole or not at all.
_SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.Return)


def does_not_call(found: list[Found], callee: str, *, last: bool) -> str:
    """Return why a function does not call another one (as the last that it does), empty if it does."""
    function = defined(found, ast.FunctionDef, "function")
    if isinstance(function, str):
        return function
    decorators = [text for text in map(ast.unparse, function.decorator_list) if text not in _PLAIN]
    if decorators:
        return f"is decorated (@{decorators[0]})"
    return _no_call(function, callee) or (_not_last(function, callee) if last else "")


def _no_call(function: ast.FunctionDef, name: str) -> str:
    """Return why a function may end without having called a name, empty if it cannot."""
    if name in names_bound(function):
        return f"binds {name} itself"
    if any(isinstance(part, _YIELDS) for part in _own(function.body)):
        return "is a generator, of which a call runs nothing"
    place = next((at for at, node in enumerate(function.body) if name in _called(node)), None)
    if place is None:
        return f"does not call {name} in each run"
    early = any(isinstance(part, ast.Return) for part in _own(function.body[:place]))
    return f"may return before it calls {name}" if early else ""


def _not_last(function: ast.FunctionDef, name: str) -> str:
    """Return why a call of a name is not all that a function ends with, empty if it is."""
    last = function.body[-1]
    call = last.value if isinstance(last, ast.Expr) else None
    if not (isinstance(call, ast.Call) and _is_name(call.func, name)):
        return f"does not end with a call of {name}"
    mentions = sum(_is_name(part, name) for part in ast.walk(function))
    return f"mentions {name} {mentions} times" if mentions > 1 else ""


def _own(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Yield the nodes of statements that are not of a scope inside them."""
    stack: list[ast.AST] = list(body)
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, _SCOPES):
            stack += ast.iter_child_nodes(node)


def _called(statement: ast.stmt) -> set[str]:
    """Return the names that are called whenever a statement is executed to its end."""
    found: set[str] = set()
    stack: list[ast.AST] = [statement]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found.add(node.func.id)
        stack += _always(node)
    return found


def _always(node: ast.AST) -> list[ast.AST]:
    """Return the parts of a node that are evaluated whenever it is."""
    parts: list[ast.AST] = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.IfExp):
        parts = [node.test]
    elif isinstance(node, ast.BoolOp):
        parts = [node.values[0]]
    elif isinstance(node, ast.Compare):
        parts = [node.left, node.comparators[0]]
    elif isinstance(node, ast.AnnAssign):
        parts = [] if node.value is None else [node.value]
    elif isinstance(node, (*_SCOPES, *_COMPREHENSIONS)) or (
        isinstance(node, ast.stmt) and not isinstance(node, _SIMPLE)
    ):
        parts = []
    return parts


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
