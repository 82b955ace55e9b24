"""Fingerprints of compiled code: whether two code objects do the same, wherever they come from."""

from __future__ import annotations

import ast
from types import CodeType

#: Length of a fingerprint in hexadecimal digits.
LENGTH = 32

#: Statements that neither define anything nor import it.
_LEFT_OUT = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Assert, ast.Delete, ast.Pass)


def fingerprint(code: CodeType) -> str:
    """Return the fingerprint of a code object: not of where it lies, and not of what describes its lines."""
    from hashlib import sha256

    return sha256(_written(code).encode()).hexdigest()[:LENGTH]


def of_parsed(parsed: ast.Module, qualname: str) -> list[str]:
    """Return the fingerprints of what the definition of a name compiles to, none where that cannot be done.

    What is compiled is the imports of the module, on which the code of a call depends, and the definition:
    less than the whole module takes. What has one of these fingerprints was made from that definition; what
    has not may still have one that the whole module gives.
    """
    outer, *inner = qualname.split(".")
    body = [cut for node in parsed.body for cut in _cut(node, outer, inner)]
    try:
        code = compile(ast.Module(body, []), "", "exec", dont_inherit=True)
    except Exception:  # noqa: BLE001 -- as for a source that does not compile: then all of it says why
        return []
    return inside([code], qualname)


def _cut(node: ast.stmt, name: str, inner: list[str]) -> list[ast.stmt]:
    """Return what of a statement is needed for the code of `name`, and of what is inside it."""
    if isinstance(node, _LEFT_OUT):
        return []
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node]
    if node.name != name or not (inner and isinstance(node, ast.ClassDef)):
        return [node] if node.name == name else []
    fields = {field: getattr(node, field) for field in node._fields if hasattr(node, field)}
    fields["body"] = [cut for part in node.body for cut in _cut(part, inner[0], inner[1:])] or [ast.Pass()]
    return [ast.fix_missing_locations(ast.copy_location(ast.ClassDef(**fields), node))]


def inside(code: list[CodeType], qualname: str) -> list[str]:
    """Return the fingerprints of what has a qualified name in the code of a module."""
    found = code
    for name in qualname.split("."):
        inside = [constant for code in found for constant in code.co_consts]
        found = [code for code in inside if isinstance(code, CodeType) and code.co_name == name]
    return [fingerprint(code) for code in found]


def _written(value: object) -> str:
    """Return a constant as text that tells it from any other, also `nan`, and -0.0 from 0.0."""
    if isinstance(value, CodeType):
        parts: list[object] = [
            value.co_code.hex(),
            value.co_names,
            value.co_varnames,
            value.co_freevars,
            value.co_cellvars,
            value.co_argcount,
            value.co_kwonlyargcount,
            value.co_posonlyargcount,
            value.co_flags,  # `*a` is told from `**a` by nothing else
            getattr(value, "co_exceptiontable", b"").hex(),  # what is tried, from Python 3.11 on
        ]
        return f"code({parts!a},{','.join(map(_written, value.co_consts))})"
    kind = type(value).__name__
    if isinstance(value, frozenset):  # whose order is not that of the source
        return f"{kind}({','.join(sorted(map(_written, value)))})"
    if isinstance(value, tuple):
        return f"{kind}({','.join(map(_written, value))})"
    return f"{kind}({value!a})"
