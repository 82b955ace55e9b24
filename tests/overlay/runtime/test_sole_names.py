"""Counting references: nobody is overlooked, and nobody who is not there is looked for."""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import pytest

from overlay.runtime.search import ORIGINAL, sole_names

SOURCE = """
def plain(): ...
class Engine:
    def method(self): ...
    @staticmethod
    def static(): ...
    @classmethod
    def of_class(cls): ...
"""
NAMES = ("plain", "Engine.method", "Engine.static", "Engine.of_class")


def place(name: str) -> tuple[Any, str]:
    """Return a fresh place: the module or class, and the name in it."""
    module = ModuleType("fresh")
    exec(SOURCE, vars(module))  # noqa: S102
    owner, _, last = name.rpartition(".")
    return (vars(module)[owner] if owner else module), last


def replacement(parent: Any, name: str) -> FunctionType:
    """Return what has the references to an original that a replacement has."""
    raw = vars(parent)[name]
    original = raw if type(raw) is FunctionType else raw.__func__

    def helper() -> Any:
        return original

    def made() -> Any:
        return original, helper

    setattr(made, ORIGINAL, original)
    return made  # type: ignore[return-value]


def suspended(item: object) -> object:
    def wait() -> Any:
        yield item

    running = wait()
    next(running)
    return running


HOLDERS: dict[str, Callable[[Any], object]] = {
    "a list": lambda item: [item],
    "a dict": lambda item: {"f": item},
    "a partial": functools.partial,
    "a default": lambda item: lambda f=item: f,
    "a closure": lambda item: lambda: item,
    "a weak reference": weakref.ref,
    "a suspended call": suspended,
}


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_whoever_holds_it_is_not_overlooked(name: str, holder: str, inside: bool) -> None:
    parent, last = place(name)
    made = replacement(parent, last)
    kept = vars(parent)[last]  # as the caller has it
    assert sole_names(parent, last, made) == [last]
    wrapped = type(kept) is not FunctionType
    inside |= holder in ("a partial", "a weak reference")  # they take functions
    held = HOLDERS[holder](kept.__func__ if inside and wrapped else kept)
    assert not sole_names(parent, last, made)
    del held
    gc.collect()
    assert sole_names(parent, last, made) == [last]


def test_an_alias_that_a_replacement_knows_of_is_an_alias() -> None:
    """A function of somebody else's, in the closure of the replacement, has the original in its own."""
    parent, last = place("plain")
    original = vars(parent)[last]
    theirs: dict[str, Any] = {}
    exec("def outer(f):\n  def inner(): return f\n  return inner", theirs)  # noqa: S102
    inner = theirs["outer"](original)

    def made() -> Any:
        return inner

    setattr(made, ORIGINAL, original)
    assert not sole_names(parent, last, made)  # type: ignore[arg-type]


def test_where_a_count_tells_nothing_it_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    parent, last = place("plain")
    parent.thing = 3
    for name in ("thing", "nothing"):
        assert not sole_names(parent, name, replacement(parent, last))
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    assert not sole_names(parent, last, replacement(parent, last))


@pytest.mark.parametrize("name", NAMES)
def test_other_names_of_its_parent_are_no_holders(name: str) -> None:
    parent, last = place(name)
    parent.twin = vars(parent)[last]
    assert sole_names(parent, last, replacement(parent, last)) == [last, "twin"]
    kept = [vars(parent)[last]] * 2  # one reference more than that of the caller
    assert not sole_names(parent, last, replacement(parent, last))
    del kept
