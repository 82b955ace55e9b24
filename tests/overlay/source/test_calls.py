"""Conditions on what is relied on: what a function does, and not what it looks like."""

from __future__ import annotations

import pytest
from fake_upstream import MemoryTree

from overlay.patch import Calls
from overlay.source.table import Row, said

#: Functions that call `end` whenever they return, and as their last statement.
HOLDS = (
    "def f(a):\n    b = a\n    end()",
    'def f():\n    """end() is called."""\n    end()',
    "def f(a):\n    if a:\n        a += 1\n    end()",
    "def f(a):\n    for b in a:\n        break\n    end()",
    "def f(a):\n    def g():\n        return a\n    h = lambda: g()\n    end()",
    "def f():\n    class G:\n        def g(self):\n            return 1\n    end()",
    "def f(a):\n    def g():\n        yield a\n    list(x for x in a)\n    end()",
    "def f(a):\n    if a:\n        raise ValueError\n    end()",
    "def f(a):\n    end(a, b=1)",
)
#: Functions that need not call it, or of which nobody can tell.
BROKEN = (
    "def g():\n    end()",
    "def f():\n    pass",
    "def f():\n    ende()",
    "def f(m):\n    m.end()",
    "def f():\n    end",
    "def f(a):\n    if a:\n        end()",
    "def f(a):\n    a and end()",
    "def f(a):\n    1 if a else end()",
    "def f(a):\n    1 < a < end()",
    "def f(a):\n    for b in a:\n        end()",
    "def f(a):\n    while end():\n        pass",
    "def f(a):\n    try:\n        end()\n    except E:\n        pass",
    "def f(a):\n    try:\n        a()\n    finally:\n        end()",
    "def f(a):\n    with a:\n        end()",
    "def f(a):\n    match a:\n        case 1:\n            end()",
    "def f():\n    def g():\n        end()\n    g()",
    "def f():\n    return lambda: end()",
    "def f(a):\n    [end() for b in a]",
    "def f():\n    a: end() = 1",
    "def f():\n    assert end()",
    "def f(a=end()):\n    pass",
    "def f(a):\n    if a:\n        return\n    end()",
    "def f(a):\n    try:\n        a()\n    except E:\n        return\n    end()",
    "def f(a):\n    try:\n        a()\n    finally:\n        return\n    end()",
    "def f(a):\n    with a:\n        return\n    end()",
    "def f(a):\n    while a:\n        return\n    end()",
    "def f(a):\n    match a:\n        case 1:\n            return\n    end()",
    "def f(a):\n    yield a\n    end()",
    "def f(a):\n    b = yield from a\n    end()",
    "def f(a):\n    end()\n    yield",
    "async def f():\n    end()",
    "@d\ndef f():\n    end()",
    "def f():\n    end()\ndef f():\n    end()",
    "def f():\n    end()\nf = d(f)",
    "def f():\n    end()\nf.__code__ = c",
    "def f():\n    end()\nfrom a import *",
    "def f():\n    end()\ndef g():\n    global f\n    f = 1",
    "if a:\n    def f():\n        end()",
    "try:\n    def f():\n        end()\nexcept E:\n    pass",
    "from a import f",
    "class f:\n    def __init__(self):\n        end()",
    "f = lambda: end()",
    "def f(end):\n    end()",
    "def f(*end):\n    end()",
    "def f():\n    end = len\n    end()",
    "def f(a):\n    (end := a)\n    end()",
    "def f():\n    from a import b as end\n    end()",
    "def f(a):\n    for end in a:\n        pass\n    end()",
    "def f():\n    del end\n    end()",
    "def f():\n    global end\n    end()",
    "def f():\n    def end():\n        pass\n    end()",
    "def f(a):\n    try:\n        a()\n    except E as end:\n        pass\n    end()",
    "def f(a):\n    match a:\n        case [*end]:\n            pass\n    end()",
)
#: Functions that call it, and do something else with it or after it.
NOT_LAST = (
    "def f(a):\n    end()\n    a()",
    "def f(a):\n    a = end()",
    "def f():\n    return end()",
    "def f(a):\n    a(end())",
    "def f(a):\n    if a:\n        end()\n    end()",
    "def f(a):\n    a(end)\n    end()",
)


def fault(source: str, *, last: bool = False, site: str = "m:f") -> str:
    """Return what a row that asks for the call finds in a source, empty if it has the call."""
    row = Row(
        patch="p", target="m", verdict="apply", sites={site: said(Calls(site=site, callee="end", last=last))}
    )
    (found,) = row.findings(MemoryTree({"m.py": source}))
    assert (found.expects, found.asks, found.holds) == (
        "calls",
        f"calls end{' last' * last}",
        not found.found,
    )
    return found.found


@pytest.mark.parametrize("source", HOLDS)
def test_a_call_in_each_run_is_recognised(source: str) -> None:
    assert fault(source) == fault(source, last=True) == ""


@pytest.mark.parametrize("source", BROKEN)
def test_whatever_is_odd_does_not_hold(source: str) -> None:
    assert fault(source) == "does not call end in each run"
    assert fault(source, last=True) == "does not call end in each run as its last statement"


@pytest.mark.parametrize("source", NOT_LAST)
def test_the_last_statement_is_asked_for_only_where_it_matters(source: str) -> None:
    assert fault(source) == ""
    assert fault(source, last=True)


def test_a_method_may_be_asked() -> None:
    source = "class A:\n    @staticmethod\n    def f():\n        end()\n"
    assert not fault(source, site="m:A.f")
    assert fault(f"@d\n{source}", site="m:A.f")
    assert fault(source.replace("staticmethod", "property"), site="m:A.f")
    # `end` of the class is not what the method looks up.
    assert not fault(f"{source}    def end():\n        pass\n", site="m:A.f")


def test_a_module_that_cannot_be_read_does_not_hold() -> None:
    assert fault("def f(:\n").startswith("cannot be checked")
    assert fault("", site="gone:f")
