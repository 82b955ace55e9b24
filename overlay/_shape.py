"""Shapes: finding a site in source text, and the digest of what stands there.

A digest is made from the syntax tree, never from the text: comments, layout and docstrings do not change
it, and neither does the minor version of the Python that parses it (`ast.dump` would: it prints fields
that come and go between releases).
"""

from __future__ import annotations

import ast

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

#: Length of a digest in hexadecimal digits (48 bits: enough against accidents, short enough to read).
DIGEST_LENGTH = 12

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
#: Fields that carry no meaning at run time, or that not every Python writes.
_IGNORED = frozenset({"ctx", "kind", "type_comment", "type_ignores", "lineno", "col_offset"})


def split_site(site: str) -> tuple[str, str]:
    """Return the module and the qualified name of `module:qualname` (the name is empty for a module)."""
    module, _, qualname = site.partition(":")
    return module, qualname


def bindings(tree: ast.Module, qualname: str) -> list[ast.AST]:
    """Return what binds `qualname` in a module, in the order of the source.

    That is every definition, import, assignment or deletion of the name, at any depth of `if`, `try`,
    `with` and loops, and assignments from outside the class (`Class.method = f`). More than one means that
    it is decided at run time, so all of them belong to the shape.
    """
    found: list[ast.AST] = []
    scopes: list[list[ast.stmt]] = [tree.body]
    names = qualname.split(".")
    for depth, name in enumerate(names):
        here = [node for body in scopes for node in _binding(body, name)]
        if depth == len(names) - 1:
            found += here
        scopes = [node.body for node in here if isinstance(node, ast.ClassDef)]
    if len(names) > 1:
        found += [node for node in _statements(tree.body) if qualname in _attribute_targets(node)]
    return found


def digest(nodes: list[ast.AST]) -> str:
    """Return the digest of one or more nodes."""
    from hashlib import sha256

    out: list[str] = []
    for node in nodes:
        _write(node, out)
    return sha256("".join(out).encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_LENGTH]


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Walk the statements of a scope, and not into the scopes inside it."""
    for node in body:
        yield node
        if isinstance(node, _DEFINITIONS):
            continue
        for field in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(node, field, None) or [])
        for handler in getattr(node, "handlers", None) or []:
            yield from _statements(handler.body)
        for case in getattr(node, "cases", None) or []:
            yield from _statements(case.body)


def _binding(body: list[ast.stmt], name: str) -> Iterator[ast.AST]:
    for node in _statements(body):
        if isinstance(node, _DEFINITIONS):
            if node.name == name:
                yield node
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                if bound == name:
                    # Other names of the same statement are no business of this site.
                    yield _only(node, alias)
        elif name in _name_targets(node):
            yield node


def _only(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> ast.AST:
    if isinstance(node, ast.Import):
        return ast.Import(names=[alias])
    return ast.ImportFrom(module=node.module, names=[alias], level=node.level)


def _targets(node: ast.stmt) -> list[ast.expr]:
    if isinstance(node, (ast.Assign, ast.Delete)):
        return node.targets
    if isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.For, ast.AsyncFor)):
        return [node.target]
    if isinstance(node, (ast.With, ast.AsyncWith)):
        return [item.optional_vars for item in node.items if item.optional_vars is not None]
    return []


def _name_targets(node: ast.stmt) -> set[str]:
    return {
        leaf.id for target in _targets(node) for leaf in ast.walk(target)
        if isinstance(leaf, ast.Name) and not isinstance(leaf.ctx, ast.Load)
    }  # fmt: skip


def _attribute_targets(node: ast.stmt) -> set[str]:
    return {ast.unparse(target) for target in _targets(node) if isinstance(target, ast.Attribute)}


def _write(value: object, out: list[str]) -> None:
    """Append a text of `value` that is the same on every supported Python."""
    if isinstance(value, ast.AST):
        out.append(type(value).__name__)
        out.append("(")
        for name in value._fields:
            field = getattr(value, name, None)
            if name in _IGNORED or field is None or field == []:
                continue
            if name == "body" and isinstance(value, (*_DEFINITIONS, ast.Module)):
                field = _without_docstring(field)
            out.append(name)
            out.append("=")
            _write(field, out)
            out.append(",")
        out.append(")")
    elif isinstance(value, list):
        out.append("[")
        for item in value:
            _write(item, out)
            out.append(",")
        out.append("]")
    else:
        out.append(f"{type(value).__name__}:{value!r}")


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0] if body else None
    if (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    ):
        return body[1:]
    return body
