"""Fingerprints of compiled code: whether two code objects do the same, wherever they come from."""

from __future__ import annotations

from types import CodeType

#: Length of a fingerprint in hexadecimal digits.
LENGTH = 32


def fingerprint(code: CodeType) -> str:
    """Return the fingerprint of a code object: not of where it lies, and not of what describes its lines."""
    from hashlib import sha256

    return sha256(_written(code).encode()).hexdigest()[:LENGTH]


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
