"""Finding in a module's syntax tree what binds a name, and what bears on that.

Statements are walked with a stack of our own: a chain of a thousand `elif` is a thousand levels deep.
"""

from __future__ import annotations

import ast

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    #: What a statement stands in, from the inside: the keyword of each suite, and what decides on it.
    Headers = tuple[list[object], ...]

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
#: What is no expression: suites, and what holds them.
_INNER = (ast.stmt, ast.ExceptHandler, ast.match_case)
_SUITES = ("body", "handlers", "orelse", "finalbody", "cases")
#: First word of the header of a class that something else may stand for: all other headers are conditions.
_CLASS = "class"


class Found:
    """A statement that binds a name, or bears on it."""

    __slots__ = ("headers", "line", "node", "sets")

    def __init__(self, node: ast.AST, headers: Headers, sets: bool | None = None) -> None:
        self.node = node
        self.headers = headers
        #: Line in the source, by which what comes later is told.
        self.line: int = getattr(node, "lineno", 0)
        #: Whether the name has a value afterwards, or none any more; `None` if that does not change.
        self.sets = sets


class Scope:
    """The body of a module or a class: by name, the statements that bind it or write its attributes."""

    def __init__(self, body: list[ast.stmt], headers: Headers = ()) -> None:
        self.names: dict[str, list[Found]] = {}
        #: Of `A.f = g` and `setattr(A, ...)`, by `A`.
        self.written: dict[str, list[Found]] = {}
        for node, where in _statements(body, headers):
            for name, (part, sets) in _bound(node).items():
                self.names.setdefault(name, []).append(Found(part, where, sets))
            for name in _written(node):
                self.written.setdefault(name, []).append(Found(node, where))


class Module(Scope):
    """A module, walked once for all that is asked of it."""

    def __init__(self, tree: ast.Module) -> None:
        super().__init__(tree.body)
        self.tree = tree
        self._classes: dict[int, Scope] = {}
        #: The definitions in which a name is declared `global`.
        self.declared: dict[str, list[Found]] = {}
        for node in ast.walk(tree):
            if isinstance(node, _DEFINITIONS):
                inside = [part for part, _ in _statements(node.body, ()) if isinstance(part, ast.Global)]
                for name in {name for part in inside for name in part.names}:
                    self.declared.setdefault(name, []).append(Found(node, ()))

    def inside(self, item: Found) -> Scope:
        """Return the body of a class. What a decorator or a metaclass leaves of it, nobody can tell."""
        node = item.node
        assert isinstance(node, ast.ClassDef)  # noqa: S101 -- for the type checker
        if id(node) not in self._classes:
            around: list[object] = [_CLASS, node.decorator_list, node.keywords]
            headers = (around, *item.headers) if node.decorator_list or node.keywords else item.headers
            self._classes[id(node)] = Scope(node.body, headers)
        return self._classes[id(node)]

    def stars(self) -> list[Found]:
        """Return the star imports: what they bind, this source does not tell."""
        return self.names.get("*", [])


def find(module: Module, qualname: str) -> list[Found]:
    """Return what binds a qualified name, and then what bears on that; nothing if nothing binds it."""
    outer, *path = qualname.split(".")
    found = module.names.get(outer, [])
    bearing = [*module.written.get(outer, ()), *module.declared.get(outer, ())]
    for name in path:
        classes = [item for item in found if isinstance(item.node, ast.ClassDef)]
        bearing += [item for item in found if item not in classes]
        scopes = [module.inside(item) for item in classes]
        found = [item for scope in scopes for item in scope.names.get(name, ())]
        bearing += [item for scope in scopes for item in scope.written.get(name, ())]
    if not found:
        return []
    first = min(item.line for item in found)
    bearing += [star for star in module.stars() if star.line >= first]
    bearing.sort(key=lambda item: item.line)
    return [*found, *(Found(item.node, item.headers) for item in bearing)]


def is_condition(header: list[object]) -> bool:
    """Return whether a header decides if a statement runs: all but that of a class."""
    return header[0] != _CLASS


def _statements(body: list[ast.stmt], headers: Headers) -> Iterator[tuple[ast.AST, Headers]]:
    """Walk the statements, handlers and cases of a scope, and not into the scopes inside it."""
    stack: list[tuple[ast.AST, Headers]] = [(node, headers) for node in reversed(body)]
    while stack:
        node, headers = stack.pop()
        yield node, headers
        if isinstance(node, _DEFINITIONS):
            continue
        suites = [name for name in _SUITES if getattr(node, name, None)]
        if not suites:
            continue
        decides = [
            value for name, value in ast.iter_fields(node) if name not in _SUITES and value is not None
        ]
        words = {"body": type(node).__name__, "orelse": "else"}
        inner = [
            (child, ([words.get(name, name), *decides], *headers))
            for name in suites
            for child in getattr(node, name)
        ]
        stack += reversed(inner)


def _bound(node: ast.AST) -> dict[str, tuple[ast.AST, bool | None]]:
    """Return the names that a statement binds or deletes: by which node, and whether each is set then."""
    found: dict[str, tuple[ast.AST, bool | None]] = {}
    if isinstance(node, _DEFINITIONS):
        found[node.name] = node, True
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        for alias in node.names:
            # Other names of the same statement are no business of this one.
            found[alias.asname or alias.name.partition(".")[0]] = _only(node, alias), True
    elif isinstance(node, ast.ExceptHandler) and node.name:
        found[node.name] = node, False
    annotates = isinstance(node, ast.AnnAssign) and node.value is None
    for part in _own_expressions(node):
        name, sets = None, None if annotates else True
        if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load):
            name, sets = part.id, False if isinstance(part.ctx, ast.Del) else sets
        elif isinstance(part, (ast.MatchAs, ast.MatchStar)):
            name = part.name
        elif isinstance(part, ast.MatchMapping):
            name = part.rest
        if name is not None:
            found.setdefault(name, (node, sets))
    return found


def _written(node: ast.AST) -> set[str]:
    """Return the names whose attributes a statement writes or deletes, however deep."""
    found = set()
    for part in _own_expressions(node):
        value: ast.AST | None = None
        if isinstance(part, ast.Attribute) and not isinstance(part.ctx, ast.Load):
            value = part
        elif isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.args:
            value = part.args[0] if part.func.id in ("setattr", "delattr") else None
        while isinstance(value, ast.Attribute):
            value = value.value
        if isinstance(value, ast.Name):
            found.add(value.id)
    return found


def _own_expressions(node: ast.AST) -> Iterator[ast.AST]:
    """Walk the expressions and patterns of a statement that are evaluated in its own scope."""
    stack = [child for child in ast.iter_child_nodes(node) if not isinstance(child, _INNER)]
    while stack:
        part = stack.pop()
        yield part
        if isinstance(part, ast.comprehension):
            stack += [part.iter, *part.ifs]  # its variable is its own
        elif not isinstance(part, ast.Lambda):
            stack += ast.iter_child_nodes(part)


def _only(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> ast.AST:
    if isinstance(node, ast.Import):
        return ast.copy_location(ast.Import(names=[alias]), node)
    return ast.copy_location(ast.ImportFrom(module=node.module, names=[alias], level=node.level), node)
