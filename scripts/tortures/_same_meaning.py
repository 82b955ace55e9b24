"""Whether two functions mean the same by their form alone: one looks at neither inputs nor results.

They do if they differ in words for people only (of an error, of a log, of `__repr__`), or in the order of two
statements of which neither calls anything nor has to do with what the other binds.
"""

from __future__ import annotations

import ast
import copy

#: Methods and functions of which the result is for people.
_WORDS = ("__repr__", "__str__")
_TELLS = ("print", "debug", "info", "warning", "warning_once", "warn")
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def same_meaning(old: ast.stmt, new: list[ast.stmt]) -> bool:
    """Return whether what takes the place of a statement means the same."""
    return ast.dump(_plain([old])) == ast.dump(_plain(new))


def _plain(body: list[ast.stmt]) -> ast.AST:
    return _Plain().visit(ast.Module(copy.deepcopy(body), []))  # type: ignore[no-any-return]


class _Plain(ast.NodeTransformer):
    """Leaves out words for people, and puts statements that may stand in any order into one."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            suite = getattr(node, name, None)
            if isinstance(suite, list):
                _sort(suite)
        return node

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        if isinstance(node.exc, ast.Call):
            node.exc.args, node.exc.keywords = [], []
        return self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        node.msg = None
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if isinstance(node.value, ast.Constant):
            return ast.Pass()
        called = node.value.func if isinstance(node.value, ast.Call) else None
        name = getattr(called, "attr", getattr(called, "id", ""))
        return ast.Pass() if name in _TELLS else self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return ast.Pass() if node.name in _WORDS else self.generic_visit(node)


def _sort(suite: list[ast.stmt]) -> None:
    """Put neighbours that have nothing to do with each other into the order of what they say."""
    for _ in suite:
        for place in range(len(suite) - 1):
            one, other = suite[place : place + 2]
            if ast.dump(one) > ast.dump(other) and _binds(one, other) and _binds(other, one):
                suite[place : place + 2] = other, one


def _binds(one: ast.stmt, other: ast.stmt) -> bool:
    """Return whether a statement does nothing but bind what another one does not name."""
    if isinstance(one, _DEFINITIONS):
        bound = [] if one.decorator_list else [one.name]
    elif isinstance(one, ast.Assign) and not any(isinstance(part, ast.Call) for part in ast.walk(one)):
        bound = [ast.unparse(target) for target in one.targets]
    else:
        bound = []
    # A name on the left: `x`, or `self.x`. What else may be on the left may be the same by another name.
    plain = all(text.replace(".", "").isidentifier() for text in bound)
    said = {ast.unparse(part) for part in ast.walk(other) if isinstance(part, (ast.Name, ast.Attribute))}
    return bool(bound) and plain and not said.intersection(bound)
