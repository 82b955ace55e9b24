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

    #: A statement, what it stands in, the attributes that it writes or deletes as dotted names, and the
    #: calls of `setattr` and `delattr` in it with the attribute.
    _Outside = tuple[ast.AST, Context, list[str], list[tuple[str, str]]]

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
#: What is no expression: suites, and what holds them.
_INNER = (ast.stmt, ast.ExceptHandler, ast.match_case)
#: The usual statements that have no suites, so that nobody needs to look for them.
_WITHOUT_SUITES = frozenset({
    ast.AnnAssign, ast.Assert, ast.Assign, ast.AugAssign, ast.Expr, ast.Import, ast.ImportFrom, ast.Pass,
    ast.Raise, ast.Return,
})  # fmt: skip
#: Expressions in which there is no other.
_LEAVES = (ast.Name, ast.Constant)
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


class Module:
    """The syntax tree of a module, walked once for all that is asked of it."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self._scopes: dict[int, _Scope] = {}
        self._globals: dict[str, list[list[ast.stmt]]] | None = None
        self._outside: list[_Outside] | None = None

    def scope(self, body: list[ast.stmt], context: Context) -> _Scope:
        """Return a suite of this module, walked."""
        found = self._scopes.get(id(body))
        if found is None:
            found = self._scopes[id(body)] = _Scope(body, context)
        return found

    def star_imports(self) -> list[ast.ImportFrom]:
        """Return the star imports of the module: what they bind, its source does not tell."""
        return [node for node, _ in self.scope(self.tree.body, None).statements if is_star(node)]

    def by_functions(self, name: str) -> Iterator[Found]:
        """Return what functions do to a name that they declare `global`."""
        if self._globals is None:
            self._globals = _declared(self.tree)
        for body in self._globals.get(name, ()):
            for item in _Scope(body, ([_GLOBAL], None)).named(name):
                yield Found(item.node, item.context, binds=False)

    def outside(self) -> list[_Outside]:
        """Return the statements that do something to an attribute or import what is not named, with which."""
        if self._outside is None:
            self._outside = []
            for node, where in self.scope(self.tree.body, None).statements:
                written = _attributes(node)
                called = [*_attribute_calls(node)]
                if written or called or is_star(node):
                    self._outside.append((node, where, written, called))
        return self._outside


class _Scope:
    """The suite of a module, class or function."""

    def __init__(self, body: list[ast.stmt], context: Context) -> None:
        #: The statements, handlers and cases in it, in the order of the source, without scopes inside it.
        self.statements = [*_statements(body, context)]
        self._names: dict[str, list[Found]] | None = None

    def named(self, name: str) -> list[Found]:
        """Return what binds a name in it."""
        if self._names is None:
            self._names = {}
            for node, where in self.statements:
                for bound, found in _names_of(node, where).items():
                    self._names.setdefault(bound, []).extend(found)
        return self._names.get(name, [])


def find(module: Module, qualname: str) -> list[Found]:
    """Return what binds a qualified name in a module, and what bears on that. Nothing if nothing binds it."""
    *path, last = qualname.split(".")
    scopes = [module.scope(module.tree.body, None)]
    bearing: list[Found] = []
    for name in path:
        here = [item for scope in scopes for item in scope.named(name)]
        scopes = [
            module.scope(*_inside(item.node, item.context))
            for item in here
            if isinstance(item.node, ast.ClassDef)
        ]
        bearing += [item for item in here if not isinstance(item.node, ast.ClassDef)]
    found = [item for scope in scopes for item in scope.named(last)]
    if path:
        bearing += module.by_functions(path[0])
        outside = [*_from_outside(module, qualname)]
    else:
        outside = [*module.by_functions(last)]
    if not found and not outside:
        return []
    start = min(item.line for item in (*found, *outside))
    bearing += [item for item in _done_to(module, qualname) if item.line >= start]
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
        if isinstance(node, _DEFINITIONS) or type(node) in _WITHOUT_SUITES:
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


def _names_of(node: ast.AST, where: Context) -> dict[str, list[Found]]:
    """Return the names that a statement binds in its scope, each with what does so."""
    found = _named_by(node, where)
    for target in _targets(node):
        removes = isinstance(node, ast.Delete)
        bare = isinstance(node, ast.AnnAssign) and node.value is None
        for leaf in ast.walk(target):
            name = _writes(leaf)
            if name is not None and name not in found:
                found[name] = [Found(node, where, binds=not removes and not bare, removes=removes)]
    for part in _own_expressions(node):
        for name in _captures(part):
            if name not in found:
                found[name] = [Found(node, where, binds=True)]
    return found


def _named_by(node: ast.AST, where: Context) -> dict[str, list[Found]]:
    """Return the names that a definition, an import or a handler says itself."""
    found: dict[str, list[Found]] = {}
    if isinstance(node, _DEFINITIONS):
        found[node.name] = [Found(node, where, binds=True)]
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        for alias in node.names:
            # Other names of the same statement are no business of this site.
            only = Found(_only(node, alias), where, binds=True)
            found.setdefault(alias.asname or alias.name.partition(".")[0], []).append(only)
    elif isinstance(node, ast.ExceptHandler) and node.name:
        found[node.name] = [Found(node, where, binds=False, removes=True)]
    return found


def _writes(leaf: ast.AST) -> str | None:
    return leaf.id if isinstance(leaf, ast.Name) and not isinstance(leaf.ctx, ast.Load) else None


def _captures(part: ast.AST) -> list[str]:
    """Return the names that part of an expression or pattern binds: a walrus, or what a `match` captures."""
    if isinstance(part, ast.NamedExpr):
        return [part.target.id]
    name = None
    if isinstance(part, (ast.MatchAs, ast.MatchStar)):
        name = part.name
    elif isinstance(part, ast.MatchMapping):
        name = part.rest
    return [] if name is None else [name]


def _own_expressions(node: ast.AST) -> Iterator[ast.AST]:
    """Walk the expressions and patterns of a statement that are evaluated in its own scope."""
    stack = [child for child in ast.iter_child_nodes(node) if not isinstance(child, _INNER)]
    while stack:
        part = stack.pop()
        yield part
        if not isinstance(part, ast.Lambda) and type(part) not in _LEAVES:
            stack += ast.iter_child_nodes(part)


def _declared(tree: ast.Module) -> dict[str, list[list[ast.stmt]]]:
    """Return the suites in which a name is declared `global`, for each such name."""
    found: dict[str, list[list[ast.stmt]]] = {}
    scopes: list[list[ast.stmt]] = [tree.body]
    while scopes:
        body = scopes.pop()
        nodes = [node for node, _ in _statements(body, None)]
        names = [name for node in nodes if isinstance(node, ast.Global) for name in node.names]
        for name in dict.fromkeys(names):
            found.setdefault(name, []).append(body)
        scopes += [node.body for node in nodes if isinstance(node, _DEFINITIONS)]
    return found


def _from_outside(module: Module, qualname: str) -> Iterator[Found]:
    """Return what the module does to an attribute: `A.f = g`, `del A.f`, `setattr(A, "f", g)`."""
    for node, where, written, called in module.outside():
        if qualname in written:
            removes = isinstance(node, ast.Delete)
            yield Found(node, where, binds=not removes, removes=removes)
        for function, name in called:
            if name == qualname:
                removes = function == "delattr"
                yield Found(node, where, binds=not removes, removes=removes)


def _done_to(module: Module, qualname: str) -> Iterator[Found]:
    """Return what may change what a name means, or the object itself: star imports, `f.__code__ = c`."""
    around = qualname.split(".")
    outer = {".".join(around[:count]) for count in range(2, len(around))}
    for node, where, written, called in module.outside():
        names = [*written, *(name for _, name in called)]
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
