"""What the measure of contracts leaves out as of the same meaning, and what it must not."""

from __future__ import annotations

import ast

import pytest

from tortures._same_meaning import same_meaning

OLD = """
def f(self, items):
    self.k = 1
    self.sets = []
    if not items:
        raise ValueError("none")
    class A:
        def __repr__(self):
            return "A"
    log(items)
    return self.k
"""


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ('raise ValueError("none")', 'raise ValueError("no items")', True),
        ('raise ValueError("none")', 'raise KeyError("none")', False),
        ("    self.k = 1\n    self.sets = []\n", "    self.sets = []\n    self.k = 1\n", True),
        ("    self.k = 1\n    self.sets = []\n", "    self.sets = []\n    self.k = 2\n", False),
        ('return "A"', 'return "B"', True),
        ("    log(items)\n    return self.k", "    return self.k\n    log(items)", False),
        ("log(items)", "pass", False),
        ("not items", "items", False),
    ],
)
def test_words_and_the_order_of_what_is_apart_mean_the_same(old: str, new: str, same: bool) -> None:
    assert OLD.count(old) == 1
    (before,), after = ast.parse(OLD).body, ast.parse(OLD.replace(old, new)).body
    assert same_meaning(before, after) is same


def test_statements_that_name_each_other_stay_in_their_order() -> None:
    for one, other in (("x = 1", "y = x"), ("x = 1", "x = 2"), ("x = f()", "y = 1"), ("x.a = 1", "y = x.a")):
        (before,) = ast.parse(f"def f():\n    {one}\n    {other}").body
        after = ast.parse(f"def f():\n    {other}\n    {one}").body
        assert not same_meaning(before, after), (one, other)
