"""Mutants of what stands at a site: the ways in which an upstream changes under a patch.

A mutation takes a copy of a syntax node that binds a site (a function, a class, an import, an assignment) and
a source of chance, and changes it in place. It returns what takes the node's place in its suite, or `None`
where there is nothing of the kind to change.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

    Mutation = Callable[[ast.stmt, random.Random], "list[ast.stmt] | None"]
    Function = ast.FunctionDef | ast.AsyncFunctionDef

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_CONDITIONS = (ast.If, ast.IfExp, ast.While)
#: What a decorator that is added is called; `with_helpers` defines it.
DECORATOR = "_mutant_decorator"

_OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Add, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


def _function(node: ast.stmt, draw: random.Random) -> Function | None:
    """Return the function itself, or one of the methods of a class."""
    if isinstance(node, _FUNCTIONS):
        return node
    methods = [item for item in getattr(node, "body", ()) if isinstance(item, _FUNCTIONS)]
    return draw.choice(methods) if isinstance(node, ast.ClassDef) and methods else None


def _suites(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the suites inside a node, docstrings aside."""
    for part in ast.walk(node):
        for name in ("body", "orelse", "finalbody"):
            suite = getattr(part, name, None)
            if isinstance(suite, list) and suite and isinstance(suite[0], ast.stmt):
                yield suite


def _code(suite: list[ast.stmt]) -> list[int]:
    """Return the places of the statements of a suite that do something."""
    idle = [_is_text(item) or isinstance(item, ast.Pass) for item in suite]
    return [place for place, nothing in enumerate(idle) if not nothing]


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def renamed_argument(node: ast.stmt, draw: random.Random) -> list[ast.stmt] | None:
    """A parameter has another name, in the whole function."""
    function = _function(node, draw)
    if function is None:
        return None
    given = function.args
    names = [
        one for one in (*given.posonlyargs, *given.args, *given.kwonlyargs) if one.arg not in ("self", "cls")
    ]
    if not names:
        return None
    chosen = draw.choice(names)
    old, chosen.arg = chosen.arg, f"{chosen.arg}_mutant"
    for part in ast.walk(function):
        if isinstance(part, ast.Name) and part.id == old:
            part.id = chosen.arg
    return [node]


def moved_call(node: ast.stmt, draw: random.Random) -> list[ast.stmt] | None:
    """A statement that calls something stands elsewhere in its suite."""
    found = [
        (suite, place)
        for suite in _suites(node)
        for place in _code(suite)
        if len(_code(suite)) > 1
        and isinstance(suite[place], (ast.Expr, ast.Assign))
        and any(isinstance(part, ast.Call) for part in ast.walk(suite[place]))
    ]
    if not found:
        return None
    suite, place = draw.choice(found)
    others = [other for other in _code(suite) if other != place]
    to = draw.choice(others)
    suite.insert(to, suite.pop(place))
    return [node]


def changed_operator(node: ast.stmt, draw: random.Random) -> list[ast.stmt] | None:
    """Another operator, comparison or connective; a condition that had none is turned round."""
    found: list[tuple[ast.AST, int]] = []
    for part in ast.walk(node):
        operator = getattr(part, "op", None)
        if isinstance(part, (ast.BinOp, ast.AugAssign, ast.BoolOp)) and type(operator) in _OPERATORS:
            found.append((part, 0))
        elif isinstance(part, ast.Compare):
            found += [(part, place) for place, one in enumerate(part.ops) if type(one) in _OPERATORS]
        elif isinstance(part, (ast.If, ast.IfExp, ast.While)) and isinstance(
            part.test, (ast.Name, ast.Attribute)
        ):
            found.append((part, 0))
    if not found:
        return None
    chosen, place = draw.choice(found)
    if isinstance(chosen, ast.Compare):
        chosen.ops[place] = _OPERATORS[type(chosen.ops[place])]()  # type: ignore[call-overload]
    elif isinstance(chosen, _CONDITIONS):
        chosen.test = ast.UnaryOp(ast.Not(), chosen.test)
    else:
        chosen.op = _OPERATORS[type(chosen.op)]()  # type: ignore[attr-defined]
    return [node]


def changed_constant(node: ast.stmt, draw: random.Random) -> list[ast.stmt] | None:
    """Another number, truth value or text."""
    texts = {id(part.value) for part in ast.walk(node) if isinstance(part, ast.Expr)}
    strings = [part for part in ast.walk(node) if isinstance(part, ast.JoinedStr)]
    inside = {id(piece) for string in strings for piece in ast.walk(string)}
    found = [
        part
        for part in ast.walk(node)
        if isinstance(part, ast.Constant)
        and isinstance(part.value, (bool, int, float, str))
        and id(part) not in texts | inside
    ]
    if not found:
        return None
    chosen = draw.choice(found)
    value = chosen.value
    if isinstance(value, bool):
        chosen.value = not value
    elif isinstance(value, str):
        chosen.value = f"{value}_mutant"
    else:
        chosen.value = value + 1  # type: ignore[operator]
    return [node]


def reordered_statements(node: ast.stmt, draw: random.Random) -> list[ast.stmt] | None:
    """Two statements that follow on each other change places."""
    found = [
        (suite, one, other)
        for suite in _suites(node)
        for one, other in zip(_code(suite), _code(suite)[1:], strict=False)
        if ast.dump(suite[one]) != ast.dump(suite[other])
    ]
    if not found:
        return None
    suite, one, other = draw.choice(found)
    suite[one], suite[other] = suite[other], suite[one]
    return [node]


def other_name(node: ast.stmt, draw: random.Random) -> list[ast.stmt] | None:
    """What is called is bound to a name of its own before: the same behaviour, another source."""
    function = _function(node, draw)
    if function is None:
        return None
    bound = {"super"}
    for part in ast.walk(function):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            bound.add(part.id)
        elif isinstance(part, ast.arg):
            bound.add(part.arg)
        elif isinstance(part, ast.alias):
            bound.add(part.asname or part.name)
        elif isinstance(part, (*_FUNCTIONS, ast.ClassDef)):
            bound.add(part.name)
    calls = [
        part
        for statement in function.body
        for part in ast.walk(statement)
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id not in bound
    ]
    if not calls:
        return None
    chosen = draw.choice(calls).func
    assert isinstance(chosen, ast.Name)
    before = ast.Assign([ast.Name("through_mutant", ast.Store())], ast.Name(chosen.id, ast.Load()))
    chosen.id = "through_mutant"
    function.body.insert(1 if _is_text(function.body[0]) else 0, before)
    return [node]


def early_return(node: ast.stmt, draw: random.Random) -> list[ast.stmt] | None:
    """A return where there was none: of nothing, or of the first argument."""
    function = _function(node, draw)
    if function is None:
        return None
    places = _code(function.body)
    if not places or isinstance(function.body[places[0]], ast.Return):
        return None
    arguments = [one.arg for one in function.args.args if one.arg not in ("self", "cls", "ctx")]
    value = ast.Name(arguments[0], ast.Load()) if arguments and draw.random() < 0.5 else None
    function.body.insert(draw.choice(places), ast.Return(value))
    return [node]


def removed_statement(node: ast.stmt, draw: random.Random) -> list[ast.stmt] | None:
    """A statement is gone."""
    found = [(suite, place) for suite in _suites(node) for place in _code(suite)]
    if not found:
        return None
    suite, place = draw.choice(found)
    suite[place] = ast.Pass()
    return [node]


def changed_default(node: ast.stmt, draw: random.Random) -> list[ast.stmt] | None:
    """A parameter has another default."""
    function = _function(node, draw)
    if function is None:
        return None
    defaults = [*function.args.defaults, *(one for one in function.args.kw_defaults if one is not None)]
    constants = [one for one in defaults if isinstance(one, ast.Constant)]
    if not constants:
        return None
    chosen = draw.choice(constants)
    value = chosen.value
    if isinstance(value, bool) or value is None:
        chosen.value = not value
    else:
        chosen.value = value + 1 if isinstance(value, (int, float)) else f"{value!r}_mutant"
    return [node]


def decorator_added(node: ast.stmt, draw: random.Random) -> list[ast.stmt] | None:
    """A decorator more, which hands the function through a wrapper."""
    function = _function(node, draw)
    if function is None:
        return None
    function.decorator_list.append(ast.Name(DECORATOR, ast.Load()))
    return [node]


def bound_again(node: ast.stmt, draw: random.Random) -> list[ast.stmt] | None:
    """The name is bound a second time, by way of the decorator."""
    name = getattr(node, "name", "")
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        alias = node.names[0]
        name = alias.asname or alias.name.partition(".")[0]
    if not name or name == "*":
        return None
    again = ast.Call(ast.Name(DECORATOR, ast.Load()), [ast.Name(name, ast.Load())], [])
    return [node, ast.Assign([ast.Name(name, ast.Store())], again)]


def import_changed(node: ast.stmt, draw: random.Random) -> list[ast.stmt] | None:
    """The name stands for something else that was imported: another function of the module, or a stub."""
    if not isinstance(node, (ast.Import, ast.ImportFrom)):
        return None
    alias = draw.choice(node.names)
    name = alias.asname or alias.name.partition(".")[0]
    if name == "*":
        return None
    stub = f"def {name}(first=None, *args, **kwargs):\n    return first"
    return [node, *ast.parse(stub).body]


def docstring_quoting(node: ast.stmt, draw: random.Random) -> list[ast.stmt] | None:
    """The docstring quotes the source. No change of meaning."""
    if not isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        return None
    quoted = ast.Expr(ast.Constant(f"Was:\n\n{ast.unparse(node)}"))
    if _is_text(node.body[0]) and isinstance(node.body[0].value, ast.Constant):  # type: ignore[attr-defined]
        node.body[0] = quoted
    else:
        node.body.insert(0, quoted)
    return [node]


def same(node: ast.stmt, draw: random.Random) -> list[ast.stmt] | None:
    """The same statement, laid out anew. No change of meaning."""
    return [node]


#: Kinds of mutants, as the table calls them.
KINDS: dict[str, Mutation] = {
    "renamed argument": renamed_argument,
    "moved call": moved_call,
    "changed operator": changed_operator,
    "changed constant": changed_constant,
    "reordered statements": reordered_statements,
    "another name": other_name,
    "early return": early_return,
    "removed statement": removed_statement,
    "changed default": changed_default,
    "decorator added": decorator_added,
    "bound again": bound_again,
    "import changed": import_changed,
    "docstring quoting": docstring_quoting,
    "comment quoting": same,
}
#: The one that is made of text.
COMMENT = "comment quoting"
#: Those that mean the same: a patch must still apply.
HARMLESS = ("docstring quoting", COMMENT)
#: Made of two releases, and of one site at a time (`half_of`).
HALF = "fix half applied"


def half_of(old: ast.stmt, new: ast.stmt, draw: random.Random) -> list[ast.stmt] | None:
    """Return the old function with some of the statements that the new one has changed, and not all."""
    from difflib import SequenceMatcher

    if not isinstance(old, _FUNCTIONS) or not isinstance(new, _FUNCTIONS):
        return None
    ours, theirs = (_lines(node) for node in (old, new))
    matched = SequenceMatcher(None, ours, theirs, autojunk=False)
    changes = [code for code in matched.get_opcodes() if code[0] != "equal"]
    # Each cut is tried in turn: half of a change need not be a whole statement.
    for count in draw.sample(range(1, len(changes)), max(len(changes) - 1, 0)):
        taken = draw.sample(changes, count)
        made = list(ours)
        for _, start, end, first, last in sorted(taken, reverse=True):
            made[start:end] = theirs[first:last]
        try:
            return list(ast.parse("\n".join(made)).body)
        except SyntaxError:
            continue
    return None


def _lines(node: ast.stmt) -> list[str]:
    return ast.unparse(node).splitlines()


def with_helpers(text: str) -> str:
    """Return a module's source with what mutants refer to, below what must stand first in it."""
    if DECORATOR not in text:
        return text
    helper = (
        f"def {DECORATOR}(function):\n"
        "    if not hasattr(function, '__code__'):\n        return function\n"
        "    return lambda *args, **kwargs: function(*args, **kwargs)\n"
    )
    tree = ast.parse(text)
    place = 0
    for node in tree.body:
        if _is_text(node) or (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
            place = node.end_lineno or 0
            continue
        break
    lines = text.splitlines(keepends=True)
    return "".join([*lines[:place], "\n", helper, *lines[place:]])
