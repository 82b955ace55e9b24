"""Write a digest that a person has accepted into the words of a patch, beside the nearest known one."""

from __future__ import annotations

import ast
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def ask(question: str) -> bool:
    """Return whether a person says yes; without one to ask, that is a no."""
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def insert(home: Path, near: str, new: str) -> bool:
    """Write a digest behind each place of `home` that has the near one among others of its kind.

    A place is an argument of a call or an element of a tuple. Returns whether there was one: a digest that
    is a constant with a name of its own stands for one source, and a second one is for a person to name.
    """
    text = home.read_text(encoding="utf-8")
    ends = [
        (one.end_lineno, one.end_col_offset)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.Call, ast.Tuple))
        for one in (node.args if isinstance(node, ast.Call) else node.elts)
        if isinstance(one, ast.Constant) and one.value == near
    ]
    lines = text.splitlines(keepends=True)
    for line, column in sorted(((line or 0, column or 0) for line, column in ends), reverse=True):
        # Columns of a tree count bytes.
        whole = lines[line - 1].encode()
        lines[line - 1] = (whole[:column] + f', "{new}"'.encode() + whole[column:]).decode()
    if ends:
        home.write_text("".join(lines), encoding="utf-8")
        subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", home], check=True)
    return bool(ends)
