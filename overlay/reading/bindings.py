"""Finding in a module's syntax tree what binds a name, and what bears on that.

Statements are walked with stacks of our own: a chain of a thousand `elif` is a thousand levels deep.
"""

from __future__ import annotations

import ast

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, TypeGuard

    #: The headers of what a statement stands in, from the inside: `(header, those around it)`.
    Context = tuple[list[object], "Context"] | None

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
#: What is no expression: suites, and what holds them.
_INNER = (ast.stmt, ast.ExceptHandler, ast.match_case)
#: First words of the headers that are no condition.
_CLASS = "class"
_GLOBAL = "global"


class Found:
    """One thing that binds a site, or bears on it."""

    __slots__ = ("binds", "context", "node", "removes")

    def __init__(self, node: ast.AST, context: Context, *, binds: bool, removes: bool = False) -> None:
        self.node = node
        self.context = context
        #: Whether the site has a value afterwards.
        self.binds = binds
        #: Whether it has none.
        self.removes = removes

    @property
    def line(self) -> int:
        """Line in the source, by which what comes later is told."""
        line: int = getattr(self.node, "lineno", 0)
        return line

    @property
    def by_function(self) -> bool:
        """Whether it is a function that does it, if that is ever called."""
        return any(header[0] == _GLOBAL for header in _headers(self.context))

    @property
    def conditional(self) -> bool:
        """Whether it need not happen."""
        return any(header[0] != _CLASS for header in _headers(self.context))

    def headers(self, *, conditions: bool) -> list[list[object]]:
        """Return what it stands in, from the inside: decorated classes, and if asked for conditions."""
        return [header for header in _headers(self.context) if conditions or header[0] == _CLASS]


def find(tree: ast.Module, qualname: str) -> list[Found]:
    """Return what binds a qualified name in a module, and what bears on that. Nothing if nothing binds it."""
    *path, last = qualname.split(".")
    scopes: list[tuple[list[ast.stmt], Context]] = [(tree.body, None)]
    bearing: list[Found] = []
    for name in path:
        here = [item for body, context in scopes for item in _in_scope(body, context, name)]
        scopes = [_inside(item.node, item.context) for item in here if isinstance(item.node, ast.ClassDef)]
        bearing += [item for item in here if not isinstance(item.node, ast.ClassDef)]
    found = [item for body, context in scopes for item in _in_scope(body, context, last)]
    if path:
        bearing += _by_functions(tree, path[0])
        outside = [*_from_outside(tree, qualname)]
    else:
        outside = [*_by_functions(tree, last)]
    if not found and not outside:
        return []
    start = min(item.line for item in (*found, *outside))
    bearing += [item for item in _done_to(tree, qualname) if item.line >= start]
    extras = outside + [Found(item.node, item.context, binds=False, removes=item.removes) for item in bearing]
    return found + sorted(extras, key=lambda item: item.line)


def names_bound(node: ast.AST) -> set[str]:
    """Return the names that anything inside a node binds or declares, at any depth, itself left out."""
    found: set[str] = set()
    for part in ast.walk(node):
        if isinstance(part, _DEFINITIONS) and part is not node:
            found.add(part.name)
        elif isinstance(part, (ast.Global, ast.Nonlocal)):
            found.update(part.names)
        elif isinstance(part, ast.alias):
            found.add(part.asname or part.name.partition(".")[0])
        elif isinstance(part, ast.arg):
            found.add(part.arg)
        elif isinstance(part, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
            found.add(part.name or "")
        elif isinstance(part, ast.MatchMapping):
            found.add(part.rest or "")
        elif name := _writes(part):
            found.add(name)
        # A type parameter (Python 3.12), which this Python may not know.
        elif type(part).__name__ in ("TypeVar", "ParamSpec", "TypeVarTuple"):
            found.add(getattr(part, "name", ""))
    return found


def star_imports(tree: ast.Module) -> list[ast.ImportFrom]:
    """Return the star imports of a module: what they bind, its source does not tell."""
    return [node for node, _ in _statements(tree.body, None) if is_star(node)]


def is_star(node: ast.AST) -> TypeGuard[ast.ImportFrom]:
    """Return whether a node is a star import."""
    return isinstance(node, ast.ImportFrom) and node.names[0].name == "*"


def _inside(node: ast.ClassDef, context: Context) -> tuple[list[ast.stmt], Context]:
    """Return the body of a class and its context. A decorator or metaclass can put something else there."""
    if not node.decorator_list and not node.keywords:
        return node.body, context
    return node.body, ([_CLASS, node.decorator_list, node.keywords], context)


def _headers(context: Context) -> Iterator[list[object]]:
    while context is not None:
        yield context[0]
        context = context[1]


def _statements(body: list[ast.stmt], context: Context) -> Iterator[tuple[ast.AST, Context]]:
    """Walk the statements, handlers and cases of a scope, and not into the scopes inside it."""
    stack: list[tuple[ast.AST, Context]] = [(node, context) for node in reversed(body)]
    while stack:
        node, context = stack.pop()
        yield node, context
        if isinstance(node, _DEFINITIONS):
            continue
        inner = [(child, (header, context)) for header, block in _blocks(node) for child in block]
        stack += reversed(inner)


def _blocks(node: ast.AST) -> list[tuple[list[object], list[Any]]]:
    """Return the suites of a statement, each with what decides on its execution."""
    if isinstance(node, (ast.If, ast.While, ast.For, ast.AsyncFor)):
        what = node.iter if isinstance(node, (ast.For, ast.AsyncFor)) else node.test
        return [([type(node).__name__, what], node.body), (["else", what], node.orelse)]
    if isinstance(node, (ast.With, ast.AsyncWith)):
        return [(["with", list(node.items)], node.body)]
    if isinstance(node, ast.ExceptHandler):
        return [(["except", node.type], node.body)]
    if isinstance(node, ast.Match):
        return [(["match", node.subject], node.cases)]
    if isinstance(node, ast.match_case):
        return [(["case", node.pattern, node.guard], node.body)]
    names = ("body", "handlers", "orelse", "finalbody")  # `try`, of both kinds
    return [([f"try {name}"], getattr(node, name)) for name in names if getattr(node, name, None)]


def _in_scope(body: list[ast.stmt], context: Context, name: str) -> Iterator[Found]:
    """Return what binds a name in a scope."""
    for node, where in _statements(body, context):
        if isinstance(node, _DEFINITIONS) and node.name == name:
            yield Found(node, where, binds=True)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                if (alias.asname or alias.name.partition(".")[0]) == name:
                    # Other names of the same statement are no business of this site.
                    yield Found(_only(node, alias), where, binds=True)
        elif isinstance(node, ast.ExceptHandler) and node.name == name:
            yield Found(node, where, binds=False, removes=True)
        elif any(_writes(leaf) == name for target in _targets(node) for leaf in ast.walk(target)):
            removes = isinstance(node, ast.Delete)
            bare = isinstance(node, ast.AnnAssign) and node.value is None
            yield Found(node, where, binds=not removes and not bare, removes=removes)
        elif any(_captures(part, name) for part in _own_expressions(node)):
            yield Found(node, where, binds=True)


def _writes(leaf: ast.AST) -> str | None:
    return leaf.id if isinstance(leaf, ast.Name) and not isinstance(leaf.ctx, ast.Load) else None


def _captures(part: ast.AST, name: str) -> bool:
    """Return whether part of an expression or pattern binds a name: a walrus, or what a `match` captures."""
    if isinstance(part, ast.NamedExpr):
        return part.target.id == name
    if isinstance(part, (ast.MatchAs, ast.MatchStar)):
        return part.name == name
    return isinstance(part, ast.MatchMapping) and part.rest == name


def _own_expressions(node: ast.AST) -> Iterator[ast.AST]:
    """Walk the expressions and patterns of a statement that are evaluated in its own scope."""
    stack = [child for child in ast.iter_child_nodes(node) if not isinstance(child, _INNER)]
    while stack:
        part = stack.pop()
        yield part
        if not isinstance(part, ast.Lambda):
            stack += ast.iter_child_nodes(part)


def _by_functions(tree: ast.Module, name: str) -> Iterator[Found]:
    """Return what functions do to a name that they declare `global`."""
    scopes: list[list[ast.stmt]] = [tree.body]
    while scopes:
        body = scopes.pop()
        nodes = [node for node, _ in _statements(body, None)]
        if any(isinstance(node, ast.Global) and name in node.names for node in nodes):
            for item in _in_scope(body, ([_GLOBAL], None), name):
                yield Found(item.node, item.context, binds=False)
        scopes += [node.body for node in nodes if isinstance(node, _DEFINITIONS)]


def _from_outside(tree: ast.Module, qualname: str) -> Iterator[Found]:
    """Return what the module does to an attribute: `A.f = g`, `del A.f`, `setattr(A, "f", g)`."""
    for node, where in _statements(tree.body, None):
        if qualname in _attributes(node):
            removes = isinstance(node, ast.Delete)
            yield Found(node, where, binds=not removes, removes=removes)
        for function, name in _attribute_calls(node):
            if name == qualname:
                removes = function == "delattr"
                yield Found(node, where, binds=not removes, removes=removes)


def _done_to(tree: ast.Module, qualname: str) -> Iterator[Found]:
    """Return what may change what a name means, or the object itself: star imports, `f.__code__ = c`."""
    around = qualname.split(".")
    outer = {".".join(around[:count]) for count in range(2, len(around))}
    for node, where in _statements(tree.body, None):
        names = [*_attributes(node), *(name for _, name in _attribute_calls(node))]
        if is_star(node) or any(name.startswith(f"{qualname}.") or name in outer for name in names):
            yield Found(node, where, binds=False)


def _attributes(node: ast.AST) -> list[str]:
    """Return the attributes that a statement writes or deletes, as dotted names."""
    targets, found = _targets(node), []
    while targets:
        target = targets.pop()
        if isinstance(target, (ast.Tuple, ast.List)):
            targets += target.elts
        elif isinstance(target, ast.Starred):
            targets.append(target.value)
        elif isinstance(target, ast.Attribute) and (name := _dotted(target)):
            found.append(name)
    return found


def _attribute_calls(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Return the calls of `setattr` and `delattr` in a statement, with the attribute as a dotted name."""
    for part in _own_expressions(node):
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and len(part.args) > 1:
            name = part.args[1]
            attribute = name.value if isinstance(name, ast.Constant) else None
            if part.func.id in ("setattr", "delattr") and isinstance(attribute, str):
                yield part.func.id, f"{_dotted(part.args[0])}.{attribute}"


def _dotted(node: ast.expr) -> str:
    """Return `a.b.c` as text, empty for any other expression."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(names)]) if isinstance(node, ast.Name) else ""


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, (ast.Assign, ast.Delete)):
        return list(node.targets)
    if isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.For, ast.AsyncFor)):
        return [node.target]
    if isinstance(node, (ast.With, ast.AsyncWith)):
        return [item.optional_vars for item in node.items if item.optional_vars is not None]
    return []


def _only(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> ast.AST:
    if isinstance(node, ast.Import):
        return ast.copy_location(ast.Import(names=[alias]), node)
    return ast.copy_location(ast.ImportFrom(module=node.module, names=[alias], level=node.level), node)
