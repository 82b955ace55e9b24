"""What the syntax tree of a module says of a site.

What a name means at run time can depend on more than its definition: on a second one under `if`, on a
decorator of its class, on an assignment from outside, on a star import below it. All of that belongs to the
shape, so that a digest that is known stands for one meaning.
"""

from __future__ import annotations

import ast

from overlay.source import digest as digests
from overlay.source.bindings import find, is_condition

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from overlay.source.bindings import Module

#: What has statements or expressions of its own that do not run with those around them.
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
#: Of what stands in these, not all is evaluated each time.
_IN_PART = (ast.IfExp, ast.BoolOp, ast.Compare, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
#: Statements that are executed whole or not at all.
_SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.Return)
#: Decorators that leave the function what it is.
_PLAIN = ("staticmethod", "classmethod")


def split_site(site: str) -> tuple[str, str]:
    """Return the module and the qualified name of `module:qualname` (the name is empty for a module)."""
    module, _, qualname = site.partition(":")
    return module, qualname


def digest(module: Module, qualname: str) -> str | None:
    """Return the digest of a site, or of the whole module without a name; `None` if there is no such site.

    Beside what binds the name, that is what it stands in: the decorators and keywords of its classes, which
    can put something else there, and if there are several bindings, what decides between them. The bases of
    a class change nothing about what it defines itself.
    """
    if not qualname:
        return digests.digest([module.tree])
    found = find(module, qualname)
    parts: list[object] = []
    for item in found:
        parts.append(item.node)
        headers = [header for header in item.headers if len(found) > 1 or not is_condition(header)]
        if headers:
            parts.append(headers)
    return digests.digest(parts) if found else None


def presence(module: Module, qualname: str) -> bool | str:
    """Return whether a site has a value once the module has been executed, or why that cannot be told."""
    outer = qualname.partition(".")[0]
    said = {item.sets for item in find(module, qualname)}
    if True in said and False not in said:
        return True
    if module.stars():
        return f"may come from `{ast.unparse(module.stars()[0].node)}`"
    is_more = outer != qualname and any(
        not isinstance(item.node, ast.ClassDef) for item in find(module, outer)
    )
    if said or is_more or outer in module.declared:
        return "may exist: it is set by something else than a definition, or deleted"
    return False


def obstacle(module: Module, qualname: str) -> str:
    """Return why what stands at a site at run time cannot be replaced by a function, empty if it can."""
    found = find(module, qualname)
    for name in [name for item in found for name in _decorators(item.node)]:
        if name == "property" or name.endswith((".setter", ".getter", ".deleter")):
            return "is a property, and no function stands there at run time"
        if name not in _PLAIN:
            return (
                f"is decorated (@{name.partition('(')[0]}), and what stands there at run time need not be "
                "the function in the source; replace what it calls, or what looks it up"
            )
    return "is bound more than once, and which of them runs cannot be told" if len(found) > 1 else ""


def imported(module: Module, qualname: str) -> tuple[int, str, str] | None:
    """Return the level, the module and the name of the `from` import that alone binds a name."""
    found = find(module, qualname)
    node = found[0].node if len(found) == 1 else None
    if not isinstance(node, ast.ImportFrom):
        return None
    return node.level, node.module or "", node.names[0].name


def calls(module: Module, qualname: str, callee: str, last: bool) -> bool:
    """Return whether a function calls a name whenever it returns, with `last` at its end and nowhere else.

    What is odd in any way does not: a decorator, a second binding, a definition under a condition, a name
    that is bound where it is looked up.
    """
    found = find(module, qualname)
    function = found[0].node if len(found) == 1 and not found[0].headers else None
    if not isinstance(function, ast.FunctionDef) or {*_decorators(function)} - {*_PLAIN}:
        return False
    parts = [part for part in ast.walk(function) if part is not function]
    if any(_binds(part, callee) for part in parts):
        return False
    if any(isinstance(part, (ast.Yield, ast.YieldFrom)) for part in _walk(function.body, _SCOPES)):
        return False  # a generator, of which a call runs nothing
    for node in function.body:
        if isinstance(node, _SIMPLE) and _calls(node, callee):
            break
        if any(isinstance(part, ast.Return) for part in _walk([node], _SCOPES)):
            return False
    else:
        return False
    end = function.body[-1]
    is_end = (
        isinstance(end, ast.Expr) and isinstance(end.value, ast.Call) and _is_name(end.value.func, callee)
    )
    return not last or (is_end and sum(_is_name(part, callee) for part in parts) == 1)


def _decorators(node: ast.AST) -> list[str]:
    return (
        [] if isinstance(node, ast.ClassDef) else list(map(ast.unparse, getattr(node, "decorator_list", ())))
    )


def _binds(node: ast.AST, name: str) -> bool:
    """Return whether a node says a name otherwise than to look it up, or as that of an attribute."""
    if isinstance(node, ast.Name):
        return node.id == name and not isinstance(node.ctx, ast.Load)
    if isinstance(node, (ast.Attribute, ast.keyword, ast.Constant)):
        return False
    values = [value for _, value in ast.iter_fields(node)]
    return any(value == name or (isinstance(value, list) and name in value) for value in values)


def _calls(statement: ast.stmt, name: str) -> bool:
    """Return whether a name is called whenever a statement is executed to its end."""
    parts = _walk([statement], (*_SCOPES, *_IN_PART))
    return any(isinstance(part, ast.Call) and _is_name(part.func, name) for part in parts)


def _walk(nodes: Iterable[ast.AST], without: tuple[type[ast.AST], ...]) -> Iterator[ast.AST]:
    """Walk nodes, and not into those of some types."""
    stack = list(nodes)
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, without):
            stack += ast.iter_child_nodes(node)


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
