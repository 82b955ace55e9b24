"""Shapes are recognised on the syntax tree."""

from __future__ import annotations

import ast
import textwrap

import pytest

from overlay._shape import bindings, digest

BASE = '''
def f(x, y=1):
    """Say."""
    # why
    return x + y
'''


def of(source: str, name: str = "f") -> str:
    return digest(bindings(ast.parse(textwrap.dedent(source)), name))


@pytest.mark.parametrize(
    "same",
    [
        "def f(x, y=1):\n    return x + y\n",
        "def f(x,\n      y=1):\n    'Else.'\n    return (x + y)  # other\n",
        "import os\ndef f(x, y=1): return x+y\ndef g(): pass\n",
    ],
)
def test_layout_comments_and_docstrings_do_not_count(same: str) -> None:
    assert of(same) == of(BASE)


@pytest.mark.parametrize(
    "other",
    [
        "def f(x, z=1):\n    return x + z\n",
        "def f(x, y=2):\n    return x + y\n",
        "def f(x, y=1):\n    return x - y\n",
        "def f(x, y=1):\n    return y + x\n",
        "async def f(x, y=1):\n    return x + y\n",
        "@g\ndef f(x, y=1):\n    return x + y\n",
        "def f(x, y='1'):\n    return x + y\n",
        "def f(x, y=1):\n    return x + y\nf = g(f)\n",
        "def f(x, y=1):\n    return x + y\nif DEBUG:\n    def f(x, y=1):\n        return 0\n",
        "def f(x, y=1):\n    return x + y\ndel f\n",
        "def f(x, y=1):\n    return x + y\nfor f in ():\n    pass\n",
        "def f(x, y=1):\n    return x + y\nwith a as f:\n    pass\n",
        "def f(x, y=1):\n    return x + y\ntry:\n    from g import f\nexcept ImportError:\n    pass\n",
        'def f(x, y=1):\n    """Say."""\n    "no docstring"\n    return x + y\n',
    ],
)
def test_everything_else_does(other: str) -> None:
    assert of(other) != of(BASE)


def test_methods_and_assignments_from_outside() -> None:
    source = "class A:\n    def f(self):\n        return 1\n    class B:\n        def f(self): return 2\n"
    assert of(source, "A.f") != of(source, "A.B.f")
    assert of(source + "A.f = g\n", "A.f") != of(source, "A.f")
    assert bindings(ast.parse(source), "A.g") == []
    assert bindings(ast.parse(source), "f") == []


def test_imported_names_are_shapes_of_their_own() -> None:
    one = of("from a import f, g\n")
    assert one == of("from a import h, f\n")
    assert one != of("from b import f\n")
    assert one != of("from .a import f\n")
    assert one != of("from a import g as f\n")
    assert of("import a.b\n", "a") == of("import a.b, c\n", "a")


def test_the_digest_is_pinned() -> None:
    """The digests in the patches must mean the same on every Python: this is one of them, by hand."""
    assert of(BASE) == "10d3741707b9"
