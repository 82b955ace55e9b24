"""What the syntax tree of a module says of a site.

What a name means at run time can depend on more than its definition: on a second one under `if`, on a
decorator of its class, on an assignment from outside, on a star import below it. All of that belongs to the
shape, so that a digest that is known stands for one meaning.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from overlay.source import digest as digests

#: The blocks around a statement, innermost first: the keyword of each, and what decides whether it runs.
Headers = tuple[list[object], ...]


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
#: Nodes that are no expressions: statements, and what holds them.
_INNER = (ast.stmt, ast.ExceptHandler, ast.match_case)
_SUITES = ("body", "handlers", "orelse", "finalbody", "cases")
#: The first word of the header of a class with decorators or keywords. All other headers are conditions.
_CLASS = "class"


class Found:
    """A statement that binds a name, or can change what the name means."""

    __slots__ = ("headers", "line", "node", "sets")

    def __init__(self, node: ast.AST, headers: Headers, sets: bool | None = None) -> None:
        self.node = node
        self.headers = headers
        #: Line in the source: it tells what comes later.
        self.line: int = getattr(node, "lineno", 0)
        #: Whether the name has a value afterwards; `None` if the statement does not change that.
        self.sets = sets


class Scope:
    """The body of a module or a class: by name, the statements that bind it or write its attributes."""

    def __init__(self, body: list[ast.stmt], headers: Headers = ()) -> None:
        self.names: dict[str, list[Found]] = {}
        #: Statements such as `A.f = g` and `setattr(A, ...)`, by `A`.
        self.written: dict[str, list[Found]] = {}
        for node, where in _statements(body, headers):
            for name, (part, sets) in _bound(node).items():
                self.names.setdefault(name, []).append(Found(part, where, sets))
            for name in _written(node):
                self.written.setdefault(name, []).append(Found(node, where))


class Module(Scope):
    """A module, whose tree is walked once for all questions."""

    def __init__(self, tree: ast.Module) -> None:
        super().__init__(tree.body)
        self.tree = tree
        self._classes: dict[int, Scope] = {}
        #: By name, the definitions that declare it `global`.
        self.declared: dict[str, list[Found]] = {}
        for node in ast.walk(tree):
            if isinstance(node, _DEFINITIONS):
                inside = [part for part, _ in _statements(node.body, ()) if isinstance(part, ast.Global)]
                for name in {name for part in inside for name in part.names}:
                    self.declared.setdefault(name, []).append(Found(node, ()))

    def inside(self, item: Found) -> Scope:
        """Return the scope of a class. Its decorators and keywords are a header: they may change anything."""
        node = item.node
        assert isinstance(node, ast.ClassDef)  # noqa: S101 -- for the type checker
        if id(node) not in self._classes:
            around: list[object] = [_CLASS, node.decorator_list, node.keywords]
            headers = (around, *item.headers) if node.decorator_list or node.keywords else item.headers
            self._classes[id(node)] = Scope(node.body, headers)
        return self._classes[id(node)]

    def stars(self) -> list[Found]:
        """Return the star imports: this source does not tell what they bind."""
        return self.names.get("*", [])


def bindings(module: Module, qualname: str) -> list[Found]:
    """Return what binds a qualified name, then what can change its meaning; nothing if nothing binds it."""
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


def _statements(body: list[ast.stmt], headers: Headers) -> Iterator[tuple[ast.AST, Headers]]:
    """Walk the statements, handlers and cases of a scope, but not the scopes inside it."""
    stack: list[tuple[ast.AST, Headers]] = [(node, headers) for node in reversed(body)]
    while stack:
        node, headers = stack.pop()
        yield node, headers
        if isinstance(node, _DEFINITIONS):
            continue
        suites = [name for name in _SUITES if getattr(node, name, None)]
        if not suites:
            continue
        fields = ast.iter_fields(node)
        decides = [value for name, value in fields if name not in _SUITES and value is not None]
        words = {"body": type(node).__name__, "orelse": "else"}
        inner = [
            (child, ([words.get(name, name), *decides], *headers))
            for name in suites
            for child in getattr(node, name)
        ]
        stack += reversed(inner)


def _bound(node: ast.AST) -> dict[str, tuple[ast.AST, bool | None]]:
    """Return the names that a statement binds or deletes, each with its node and its `Found.sets`."""
    found: dict[str, tuple[ast.AST, bool | None]] = {}
    if isinstance(node, _DEFINITIONS):
        found[node.name] = node, True
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        for alias in node.names:
            # The other names of the statement must not count for this one.
            alone = type(node)(**{**dict(ast.iter_fields(node)), "names": [alias]})
            found[alias.asname or alias.name.partition(".")[0]] = ast.copy_location(alone, node), True
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
            stack += [part.iter, *part.ifs]  # its variable has a scope of its own
        elif not isinstance(part, ast.Lambda):
            stack += ast.iter_child_nodes(part)


#: Nodes whose body does not run with the code around them.
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
#: Expressions of which Python need not evaluate every part.
_IN_PART = (ast.IfExp, ast.BoolOp, ast.Compare, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
#: Statements that are executed whole or not at all.
_SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.Return)
#: Decorators that leave the function unchanged.
_PLAIN = ("staticmethod", "classmethod")


def split_site(site: str) -> tuple[str, str]:
    """Return the module and the qualified name of `module:qualname` (the name is empty for a module)."""
    module, _, qualname = site.partition(":")
    return module, qualname


def site_digest(module: Module, qualname: str) -> str | None:
    """Return the digest of a site, or of the whole module without a name; `None` if there is no such site.

    It covers the bindings of the name, the decorators and keywords of the classes around it, which can put
    something else there, and if there are several bindings, the conditions that decide between them. The
    bases of a class do not count: they change nothing that the class itself defines.
    """
    if not qualname:
        return digests.digest([module.tree])
    found = bindings(module, qualname)
    parts: list[object] = []
    for item in found:
        parts.append(item.node)
        headers = [header for header in item.headers if len(found) > 1 or header[0] == _CLASS]
        if headers:
            parts.append(headers)
    return digests.digest(parts) if found else None


def presence(module: Module, qualname: str) -> bool | str:
    """Return whether a site has a value once the module has been executed, or why that cannot be told."""
    outer = qualname.partition(".")[0]
    said = {item.sets for item in bindings(module, qualname)}
    if True in said and False not in said:
        return True
    if module.stars():
        return f"may come from `{ast.unparse(module.stars()[0].node)}`"
    around = bindings(module, outer) if outer != qualname else []
    is_more = any(not isinstance(item.node, ast.ClassDef) for item in around)
    if said or is_more or outer in module.declared:
        return "may exist: it is set by something else than a definition, or deleted"
    return False


def obstacle(module: Module, qualname: str) -> str:
    """Return why what stands at a site at run time cannot be replaced by a function, empty if it can."""
    found = bindings(module, qualname)
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
    """Return level, module and name of the `from` import that binds a name, `None` if anything else does."""
    found = bindings(module, qualname)
    node = found[0].node if len(found) == 1 else None
    if not isinstance(node, ast.ImportFrom):
        return None
    return node.level, node.module or "", node.names[0].name


def calls(module: Module, qualname: str, callee: str, last: bool) -> bool:
    """Return whether a function calls a name whenever it returns, with `last` at its end and nowhere else.

    The answer is no for anything odd: a decorator, a second binding, a definition under a condition, a local
    binding of the name.
    """
    found = bindings(module, qualname)
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
    end = getattr(function.body[-1], "value", None) if isinstance(function.body[-1], ast.Expr) else None
    is_end = isinstance(end, ast.Call) and _is_name(end.func, callee)
    return not last or (is_end and sum(_is_name(part, callee) for part in parts) == 1)


def _decorators(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ClassDef):
        return []
    return list(map(ast.unparse, getattr(node, "decorator_list", ())))


def _binds(node: ast.AST, name: str) -> bool:
    """Return whether a node mentions a name other than to look it up, or as an attribute or a keyword."""
    if isinstance(node, ast.Name):
        return node.id == name and not isinstance(node.ctx, ast.Load)
    if isinstance(node, (ast.Attribute, ast.keyword, ast.Constant)):
        return False
    values = [value for _, value in ast.iter_fields(node)]
    return any(value == name or (isinstance(value, list) and name in value) for value in values)


def _calls(statement: ast.stmt, name: str) -> bool:
    """Return whether a statement calls a name each time that it runs to its end."""
    parts = _walk([statement], (*_SCOPES, *_IN_PART))
    return any(isinstance(part, ast.Call) and _is_name(part.func, name) for part in parts)


def _walk(nodes: Iterable[ast.AST], without: tuple[type[ast.AST], ...]) -> Iterator[ast.AST]:
    """Walk nodes, but not into those of some types."""
    stack = list(nodes)
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, without):
            stack += ast.iter_child_nodes(node)


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
