"""What a definition compiles to alone is what it compiles to in its module."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from fake_upstream import MemoryTree

HERE = Path(__file__).resolve().parents[3]
#: Long modules of different kinds, with methods, closures, decorators and calls of what is imported.
FILES = ("overlay/reading/source.py", "overlay/enabling/session.py", "scripts/records/support.py")
MORE = """
from __future__ import annotations
import os
try:
    import json as data
except ImportError:
    data = None
CONSTANT = 3
if CONSTANT:
    def either(x): return os.path.join(x, data.dumps(CONSTANT))
else:
    def either(x): return x
def twice(): return 1
def twice(): return 2
class A(dict, metaclass=type):
    field: int = 1
    class B:
        async def f(self, *, k: int = CONSTANT) -> None: return await super().f(os.getpid(), self.__private)
    def f(self): return [super().f(x) for x in self if (y := x)]
    def f(self): return 0
"""


def sites(text: str) -> list[str]:
    """Return the functions of a module, also those of its classes."""
    found: list[str] = []

    def visit(node: ast.AST, path: tuple[str, ...]) -> None:
        for part in ast.iter_child_nodes(node):
            named = isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            inner = (*path, part.name) if named else path  # type: ignore[attr-defined]
            if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found.append(".".join(inner))
            else:
                visit(part, inner)

    visit(ast.parse(text), ())
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("text", [(HERE / name).read_text() for name in FILES] + [MORE], ids=[*FILES, "more"])
def test_it_is_the_same(text: str) -> None:
    tree = MemoryTree({"m.py": text})
    names = sites(text)
    assert names
    for name in names:
        assert tree.ask("prints", f"m:{name}") == tree.fingerprints(f"m:{name}") != [], name


TRIED = """
def f():
    try:
        x = a()
        b(x)
    except E:
        c()
    return x
"""
#: Python 3.11 and later compile both to the same steps, and note apart which of them are tried.
ONE_LESS = TRIED.replace(
    "        b(x)\n    except E:\n        c()\n", "    except E:\n        c()\n    else:\n        b(x)\n"
)


def test_what_is_tried_is_told_apart() -> None:
    first, second = (MemoryTree({"m.py": text}).fingerprints("m:f") for text in (TRIED, ONE_LESS))
    assert first != second


@pytest.mark.parametrize(("one", "other"), [("*a", "**a"), ("a, b, /", "a, /, b"), ("a, /", "a")])
def test_kinds_of_parameters_are_told_apart(one: str, other: str) -> None:
    first, second = (
        MemoryTree({"m.py": f"def f({given}):\n    return a\n"}).fingerprints("m:f") for given in (one, other)
    )
    assert first != second


def test_what_is_not_there_or_does_not_compile_has_none() -> None:
    tree = MemoryTree({"m.py": "def f():\n    return 1\ndef g():\n    nonlocal x\n"})
    assert tree.ask("prints", "m:h") == []
    assert tree.ask("prints", "m:g") == []
    assert len(tree.ask("prints", "m:f")) == 1
