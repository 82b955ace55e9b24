"""Fingerprints of what definitions compile to."""

from __future__ import annotations

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
    first, second = (MemoryTree({"m.py": text}).fingerprints("m:f") for text in (TRIED, ONE_LESS))
    assert first != second


@pytest.mark.parametrize(("one", "other"), [("*a", "**a"), ("a, b, /", "a, /, b"), ("a, /", "a")])
def test_kinds_of_parameters_are_told_apart(one: str, other: str) -> None:
    first, second = (
        MemoryTree({"m.py": f"def f({given}):\n    return a\n"}).fingerprints("m:f") for given in (one, other)
    )
    assert first != second


def test_what_is_not_there_has_none_and_each_of_several_has_one() -> None:
    tree = MemoryTree({"m.py": "def f():\n    return 1\ndef f():\n    return 2\n"})
    assert tree.fingerprints("m:h") == []
    assert len({*tree.fingerprints("m:f")}) == 2
