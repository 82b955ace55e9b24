"""Fingerprints of compiled code: whether two code objects do the same, wherever they come from."""

from __future__ import annotations

from types import CodeType


def fingerprint(value: object) -> str:
    """Return a text of a code object, or of a constant in one: not of where it lies, nor of its lines.

    It tells a value from any other, also `nan`, and -0.0 from 0.0.
    """
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
        return f"code({parts!a},{','.join(map(fingerprint, value.co_consts))})"
    kind = type(value).__name__
    if isinstance(value, frozenset):  # whose order is not that of the source
        return f"{kind}({','.join(sorted(map(fingerprint, value)))})"
    if isinstance(value, tuple):
        return f"{kind}({','.join(map(fingerprint, value))})"
    return f"{kind}({value!a})"


def inside(code: list[CodeType], qualname: str) -> list[str]:
    """Return the fingerprints of what has a qualified name in the code of a module."""
    found = code
    for name in qualname.split("."):
        inside = [constant for code in found for constant in code.co_consts]
        found = [code for code in inside if isinstance(code, CodeType) and code.co_name == name]
    return [fingerprint(code) for code in found]
