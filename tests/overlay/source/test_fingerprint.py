"""What definitions compile to, told apart."""

from __future__ import annotations

import sys

import pytest
from fake_upstream import MemoryTree

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
    first, second = (MemoryTree({"m.py": text}).code("m:f") for text in (TRIED, ONE_LESS))
    assert first != second


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("*a: a", "**a: a"),
        ("a, b, /: a", "a, /, b: a"),
        ("a, /: a", "a: a"),
        ("a: 0.0", "a: -0.0"),
        ("a: 1", "a: True"),
        ("a: lambda: 1", "a: lambda: 2"),
        ("a: a in {1, 2}", "a: a in {1, 3}"),
        ("a: a.b", "a: a.c"),
    ],
)
def test_what_does_something_else_is_told_apart_and_where_it_lies_does_not_count(
    one: str, other: str
) -> None:
    def of(text: str, above: str = "") -> object:
        parameters, _, value = text.partition(": ")
        return MemoryTree({"m.py": f"{above}def f({parameters}):\n    return {value}\n"}).code("m:f")

    assert of(one) == of(one, "a = 1\n\n")
    assert of(one) != of(other)


def test_what_is_not_there_has_none_and_each_of_several_has_one() -> None:
    tree = MemoryTree({"m.py": "def f():\n    return 1\ndef f():\n    return 2\n"})
    assert tree.code("m:h") == []
    one, other = tree.code("m:f")
    assert one != other


@pytest.mark.skipif(sys.version_info < (3, 12), reason="this Python has no parameters of types")
def test_what_has_parameters_of_types_has_code() -> None:
    text = "def f[T](x: T) -> T:\n    return x\n\nclass A[T]:\n    def g(self):\n        return 1\n"
    tree = MemoryTree({"m.py": text})
    assert [code.co_name for site in ("m:f", "m:A.g") for code in tree.code(site)] == ["f", "g"]
