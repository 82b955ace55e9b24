"""Conditions on what is relied on: what a function does, and not what it looks like."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from fake_upstream import MemoryTree

from overlay.patch import Calls
from overlay.source.table import Row, said

if TYPE_CHECKING:
    from overlay.verdict import SiteFinding

HOLDS = {
    "plain": "def f(a):\n    b = a\n    end()",
    "documented": 'def f():\n    """end() is called."""\n    end()',
    "after a condition": "def f(a):\n    if a:\n        a += 1\n    end()",
    "after a loop that it leaves": "def f(a):\n    for b in a:\n        break\n    end()",
    "a nested function returns": "def f(a):\n    def g():\n        return a\n    h = lambda: g()\n    end()",
    "a nested class": "def f():\n    class G:\n        def g(self):\n            return 1\n    end()",
    "a generator inside": "def f(a):\n    def g():\n        yield a\n    list(x for x in a)\n    end()",
    "it may raise": "def f(a):\n    if a:\n        raise ValueError\n    end()",
    "with arguments": "def f(a):\n    end(a, b=1)",
}
#: What is wrong with it, and what is said of it.
BROKEN = {
    "not there": ("def g():\n    end()", "does not exist"),
    "no call": ("def f():\n    pass", "does not call end in each run"),
    "another name": ("def f():\n    ende()", "does not call end in each run"),
    "an attribute": ("def f(m):\n    m.end()", "does not call end in each run"),
    "mentioned only": ("def f():\n    end", "does not call end in each run"),
    "under a condition": ("def f(a):\n    if a:\n        end()", "does not call end in each run"),
    "in an expression's branch": ("def f(a):\n    a and end()", "does not call end in each run"),
    "in the other branch": ("def f(a):\n    1 if a else end()", "does not call end in each run"),
    "in a chain": ("def f(a):\n    1 < a < end()", "does not call end in each run"),
    "in a loop": ("def f(a):\n    for b in a:\n        end()", "does not call end in each run"),
    "in what a loop is over": ("def f(a):\n    while end():\n        pass", "does not call end in each run"),
    "in a try": (
        "def f(a):\n    try:\n        end()\n    except E:\n        pass",
        "does not call end in each run",
    ),
    "in a finally": (
        "def f(a):\n    try:\n        a()\n    finally:\n        end()",
        "does not call end in each run",
    ),
    "in a with": ("def f(a):\n    with a:\n        end()", "does not call end in each run"),
    "in a match": (
        "def f(a):\n    match a:\n        case 1:\n            end()",
        "does not call end in each run",
    ),
    "in a nested function": (
        "def f():\n    def g():\n        end()\n    g()",
        "does not call end in each run",
    ),
    "in a lambda": ("def f():\n    return lambda: end()", "does not call end in each run"),
    "in a comprehension": ("def f(a):\n    [end() for b in a]", "does not call end in each run"),
    "in an annotation": ("def f():\n    a: end() = 1", "does not call end in each run"),
    "in an assertion": ("def f():\n    assert end()", "does not call end in each run"),
    "in a default of itself": ("def f(a=end()):\n    pass", "does not call end in each run"),
    "a return before": ("def f(a):\n    if a:\n        return\n    end()", "may return before it calls end"),
    "a return in a try": (
        "def f(a):\n    try:\n        a()\n    except E:\n        return\n    end()",
        "may return before it calls end",
    ),
    "a return in a finally": (
        "def f(a):\n    try:\n        a()\n    finally:\n        return\n    end()",
        "may return before it calls end",
    ),
    "a return in a with": ("def f(a):\n    with a:\n        return\n    end()", "may return before"),
    "a return in a loop": ("def f(a):\n    while a:\n        return\n    end()", "may return before"),
    "a return in a match": (
        "def f(a):\n    match a:\n        case 1:\n            return\n    end()",
        "may return before it calls end",
    ),
    "a generator": ("def f(a):\n    yield a\n    end()", "is a generator, of which a call runs nothing"),
    "a generator from": ("def f(a):\n    b = yield from a\n    end()", "is a generator"),
    "a yield below": ("def f(a):\n    end()\n    yield", "is a generator"),
    "async": ("async def f():\n    end()", "is not a function that is defined here"),
    "decorated": ("@d\ndef f():\n    end()", "is decorated (@d)"),
    "twice": ("def f():\n    end()\ndef f():\n    end()", "is bound more than once"),
    "assigned afterwards": ("def f():\n    end()\nf = d(f)", "is bound more than once"),
    "its code is replaced": ("def f():\n    end()\nf.__code__ = c", "is bound more than once"),
    "a star import below": ("def f():\n    end()\nfrom a import *", "is bound more than once"),
    "bound by another function": (
        "def f():\n    end()\ndef g():\n    global f\n    f = 1",
        "is bound more than once",
    ),
    "under if": ("if a:\n    def f():\n        end()", "is defined under a condition"),
    "in a try of the module": (
        "try:\n    def f():\n        end()\nexcept E:\n    pass",
        "is defined under a condition",
    ),
    "an import": ("from a import f", "is not a function that is defined here"),
    "a class": ("class f:\n    def __init__(self):\n        end()", "is not a function"),
    "a lambda": ("f = lambda: end()", "is not a function"),
    "a parameter": ("def f(end):\n    end()", "binds end itself"),
    "star parameters": ("def f(*end):\n    end()", "binds end itself"),
    "a local name": ("def f():\n    end = len\n    end()", "binds end itself"),
    "a walrus": ("def f(a):\n    (end := a)\n    end()", "binds end itself"),
    "an import inside": ("def f():\n    from a import b as end\n    end()", "binds end itself"),
    "a loop variable": ("def f(a):\n    for end in a:\n        pass\n    end()", "binds end itself"),
    "deleted": ("def f():\n    del end\n    end()", "binds end itself"),
    "declared global": ("def f():\n    global end\n    end()", "binds end itself"),
    "a nested function of the name": (
        "def f():\n    def end():\n        pass\n    end()",
        "binds end itself",
    ),
    "an exception": (
        "def f(a):\n    try:\n        a()\n    except E as end:\n        pass\n    end()",
        "binds end",
    ),
    "captured": (
        "def f(a):\n    match a:\n        case [*end]:\n            pass\n    end()",
        "binds end itself",
    ),
}
NOT_LAST = {
    "something after": ("def f(a):\n    end()\n    a()", "does not end with a call of end"),
    "its value is used": ("def f(a):\n    a = end()", "does not end with a call of end"),
    "its value is returned": ("def f():\n    return end()", "does not end with a call of end"),
    "inside another call": ("def f(a):\n    a(end())", "does not end with a call of end"),
    "twice": ("def f(a):\n    if a:\n        end()\n    end()", "mentions end 2 times"),
    "handed on": ("def f(a):\n    a(end)\n    end()", "mentions end 2 times"),
}


def asked(source: str, *, last: bool = False, site: str = "m:f") -> SiteFinding:
    asks = said(Calls(site=site, callee="end", last=last))
    row = Row(patch="p", target="m", verdict="apply", sites={site: asks})
    (found,) = row.findings(MemoryTree({"m.py": source}))
    return found


@pytest.mark.parametrize("name", HOLDS)
def test_a_call_in_each_run_is_recognised(name: str) -> None:
    for last in (False, True):
        found = asked(HOLDS[name], last=last)
        assert found.holds, found.found
        assert (found.expects, found.found) == ("calls", "")
    assert found.asks == "calls end last"


@pytest.mark.parametrize("name", BROKEN)
def test_whatever_is_odd_does_not_hold(name: str) -> None:
    source, why = BROKEN[name]
    for last in (False, True):
        found = asked(source, last=last)
        assert not found.holds
        assert why in found.found


@pytest.mark.parametrize("name", NOT_LAST)
def test_the_last_statement_is_asked_for_only_where_it_matters(name: str) -> None:
    source, why = NOT_LAST[name]
    assert asked(source).holds
    found = asked(source, last=True)
    assert not found.holds
    assert why in found.found


def test_a_method_may_be_asked() -> None:
    source = "class A:\n    @staticmethod\n    def f():\n        end()\n"
    assert asked(source, site="m:A.f").holds
    assert not asked(f"@d\n{source}", site="m:A.f").holds
    assert not asked(source.replace("staticmethod", "property"), site="m:A.f").holds
    # `end` of the class is not what the method looks up.
    assert asked(f"{source}    def end():\n        pass\n", site="m:A.f").holds


def test_a_module_that_cannot_be_read_does_not_hold() -> None:
    assert asked("def f(:\n").found.startswith("cannot be checked")
    assert asked("", site="gone:f").found == "does not exist"
