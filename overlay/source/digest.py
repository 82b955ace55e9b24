"""The digest of what stands at a site.

It is made from the syntax tree, never from the text: comments, layout and docstrings do not change it, and
neither does the Python that parses it. `ast.dump` does not serve: its fields come and go between releases,
Python 3.12 cuts f-strings into other pieces, and `repr` escapes what its Unicode tables cannot print.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from hashlib import sha256

#: Length of a digest in hexadecimal digits (48 bits: enough against accidents, short enough to read).
DIGEST_LENGTH = 12

#: Fields that carry no meaning at run time, or that not every Python writes.
_IGNORED = frozenset({"ctx", "kind", "type_comment", "type_ignores", "lineno", "col_offset"})
_WITH_DOCSTRING = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
#: Integers of more bits are written in hexadecimal: a setting limits how many decimal digits Python prints.
_WIDE = 1 << 10


def digest(nodes: Sequence[object]) -> str:
    """Return the digest of syntax nodes, strings, and lists of them."""
    return sha256("".join(map(_text, nodes)).encode()).hexdigest()[:DIGEST_LENGTH]


def _text(value: object) -> str:
    """Return a text that is the same on every supported Python."""
    if isinstance(value, ast.AST):
        fields = [f"{name}={_text(field)}," for name, field in _fields(value)]
        return f"{type(value).__name__}({''.join(fields)})"
    if isinstance(value, list):
        return f"[{''.join([f'{_text(item)},' for item in value])}]"
    return f"{type(value).__name__}:{_constant(value)}"


def _fields(node: ast.AST) -> list[tuple[str, object]]:
    """Return the fields of a node that count, by name."""
    found: list[tuple[str, object]] = []
    for name in node._fields:
        if name in _IGNORED:
            continue
        field = getattr(node, name, None)
        if field is None or (type(field) is list and not field):
            continue
        if name == "body" and isinstance(node, _WITH_DOCSTRING):
            field = field[1:] if ast.get_docstring(node, clean=False) is not None else field
        elif name == "values" and isinstance(node, ast.JoinedStr):
            field = _pieces(field)
            if not field:
                continue
        elif name == "format_spec" and isinstance(field, ast.JoinedStr) and not _pieces(field.values):
            continue
        found.append((name, field))
    return found


def _pieces(values: list[ast.expr]) -> list[ast.expr]:
    """Return the parts of an f-string, without empty texts and with adjacent texts merged."""
    merged: list[ast.expr] = []
    for value in values:
        if not isinstance(value, ast.Constant) or not isinstance(value.value, str):
            merged.append(value)
            continue
        before = merged[-1] if merged else None
        if isinstance(before, ast.Constant) and isinstance(before.value, str):
            merged[-1] = ast.Constant(before.value + value.value)
        elif value.value:
            merged.append(value)
    return merged


def _constant(value: object) -> str:
    if isinstance(value, str):
        return ascii(value)
    if type(value) is int and value.bit_length() > _WIDE:
        return hex(value)
    return repr(value)
