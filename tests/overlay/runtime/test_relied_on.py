"""A patch relies on functions that it doesn't replace: what stands there at run time counts too."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import sys
from collections.abc import Callable, Iterator
from opcode import opmap
from typing import Any

import pytest
from fake_upstream import Engines, Upstream, triple

from overlay.errors import PatchError
from overlay.patch import Calls
from overlay.runtime.engine import Engine

CORE = """
import contextlib
import functools

def helper(value):
    return value + 1

def scale(value, factor=2):
    helper(value)
    return value * factor

class Engine:
    def run(self, value):
        return value

@functools.lru_cache
def cached(value):
    return value

@contextlib.contextmanager
def context(value):
    yield value

FACTOR = 3
"""
#: The same, where `helper` comes from another module by way of a third.
FAR = {
    "core": f"from fakeup.middle import helper\n{CORE.replace('def helper', 'def other')}",
    "middle": "from fakeup.last import helper\n",
    "last": "def helper(value):\n    return value\n",
}
#: What the patch relies on: of the last ones nothing can be told at run time.
SITES = (
    "fakeup.core:helper", "fakeup.core:Engine.run", "fakeup.core:context", "fakeup.core:cached",
    "fakeup.core:FACTOR",
)  # fmt: skip


@pytest.fixture
def engine(upstream: Upstream, engines: Engines) -> Engine:
    """Return an engine with a patch that relies on all kinds of sites."""
    upstream.write(core=CORE)
    return engines(upstream.patch({"fakeup.core:scale": triple}, *SITES))


def timed(function: Any) -> Any:
    """Wrap a function as a timer does, or somebody who corrects its result."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def around_helper(original: Any, _module: Any) -> Any:
    def helper(value: Any) -> Any:
        return original(value) * 2

    return helper


CHANGES: list[tuple[str, str, Callable[[Any], Any], bool]] = [
    ("wrapped", "helper", timed, True),
    ("wrapped by a partial", "helper", functools.partial, True),
    ("replaced", "helper", lambda _: lambda value: value, False),
    ("method wrapped", "Engine.run", timed, True),
    ("method replaced", "Engine.run", lambda _: lambda *_: 0, False),
]


@pytest.mark.parametrize(
    ("site", "change", "works"), [one[1:] for one in CHANGES], ids=[c[0] for c in CHANGES]
)
def test_somebody_replaces_later_what_a_patch_relies_on(
    upstream: Upstream, engine: Engine, capsys: pytest.CaptureFixture[str],
    site: str, change: Callable[[Any], Any], works: bool,
) -> None:  # fmt: skip
    """Whether the patch still does right cannot be told. A timer on one rank stops no job."""
    engine.enable(strict=True)
    core: Any = upstream.load()
    assert engine.status().patches[0].state == "applied"
    owner, name = (core.Engine, "run") if "." in site else (core, site)
    was = vars(owner)[name]
    setattr(owner, name, change(was))
    for _ in range(2):
        (found,) = engine.status().patches
    assert (found.state, found.in_force) == ("incomplete", works)
    said = f"fakeup.core:{site} is relied on, and was replaced by "
    assert capsys.readouterr().err.count(f"lost fakeup.scale: {said}") == 1
    setattr(owner, name, was)
    assert engine.status().patches[0].state == "applied"
    assert core.scale(1) == 200


@pytest.mark.parametrize("site", ["helper", "scale"])
def test_code_that_is_put_into_a_function_is_seen(
    upstream: Upstream, engine: Engine, capsys: pytest.CaptureFixture[str], site: str
) -> None:
    """As `%autoreload` does, be it in what a patch relies on or in its replacement."""
    engine.enable()
    core: Any = upstream.load()
    engine.status()
    function, original = vars(core)[site], None
    edited: dict[str, Any] = {"helper": lambda value: value, "scale": lambda value, factor=2: original}
    was, function.__code__ = function.__code__, edited[site].__code__
    (found,) = engine.status().patches
    assert (found.state, found.in_force) == ("incomplete", False)
    assert f"lost fakeup.scale: fakeup.core:{site} " in capsys.readouterr().err
    function.__code__ = was
    assert engine.status().patches[0].state == "applied"
    if site == "scale":
        defaults, function.__defaults__ = function.__defaults__, (7,)  # which ours may not look at
        assert engine.status().patches[0].state == "incomplete"
        function.__defaults__ = defaults
        assert engine.status().patches[0].state == "applied"


@pytest.mark.parametrize("change", [timed, lambda _: lambda value: value, functools.partial])
def test_what_was_replaced_before_is_a_conflict(
    upstream: Upstream, engine: Engine, change: Callable[[Any], Any]
) -> None:
    core: Any = upstream.load()
    core.helper = change(core.helper)
    engine.enable()
    (found,) = engine.status().patches
    assert (found.state, found.verdict and found.verdict.verdict) == ("skipped", "conflict")
    assert "fakeup.core:helper is relied on, and was replaced by " in found.reason
    assert core.scale(1) == 2
    engine.disable()
    with pytest.raises(PatchError, match=r"fakeup\.core:helper is relied on"):
        engine.enable(strict=True)


def test_what_is_as_its_source_says_is_no_conflict(upstream: Upstream, engine: Engine) -> None:
    """Also if it was imported before, and of what a decorator has made there."""
    upstream.load()
    engine.enable(strict=True)
    assert engine.status().patches[0].state == "applied"


def test_a_second_import_of_the_same_source_changes_nothing(upstream: Upstream, engines: Engines) -> None:
    upstream.write(core=CORE, other="def helper(value):\n    return value\n")
    engine = engines(upstream.patch({"fakeup.core:scale": triple}, "fakeup.other:helper"))
    engine.enable(strict=True)
    other = importlib.import_module("fakeup.other")
    upstream.load()
    assert engine.status().patches[0].state == "applied"
    importlib.reload(other)
    assert engine.status().patches[0].state == "applied"
    upstream.write(other="def helper(value):\n    return value + 2  # edited\n")
    importlib.reload(other)
    assert "fakeup.other:helper is relied on, and was replaced by" in engine.status().patches[0].reason


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("order", [1, -1])
def test_another_patch_may_replace_what_one_relies_on(
    upstream: Upstream, engines: Engines, order: int, late: bool
) -> None:
    upstream.write(core=CORE)

    def more(original: Any, _module: Any) -> Any:
        def helper(value: Any) -> Any:
            return original(value) + 1

        return helper

    one = upstream.patch({"fakeup.core:scale": triple}, SITES[0], name="fakeup.scale")
    other = upstream.patch({"fakeup.core:helper": more}, name="fakeup.helper")
    engine = engines(*[one, other][::order])
    core: Any = upstream.load() if late else None
    engine.enable(strict=True)
    core = core or upstream.load()
    assert [one.state for one in engine.status().patches] == ["applied", "applied"]
    core.helper = timed(core.helper)
    assert {one.patch: one.in_force for one in engine.status().patches} == {
        "fakeup.scale": True, "fakeup.helper": True
    }  # fmt: skip


def test_a_function_that_is_relied_on_for_one_call_counts(upstream: Upstream, engines: Engines) -> None:
    upstream.write(core=CORE)
    patch = upstream.patch({"fakeup.core:helper": lambda original, _: lambda value: original(value) + 1},
                           Calls(site="fakeup.core:scale", callee="helper"))  # fmt: skip
    engine = engines(patch)
    engine.enable()
    core: Any = upstream.load()
    engine.status()
    core.scale = lambda *_: 0
    assert not engine.status().patches[0].in_force


def test_a_module_that_is_still_being_executed_is_looked_at_later(
    upstream: Upstream, engines: Engines
) -> None:
    """It may yet give the name another function."""
    other = """
        def helper(value):
            return value

        from fakeup import core

        def made(function):
            return lambda value: function(value)

        helper = made(helper)
        """
    upstream.write(core=CORE, other=other)
    engine = engines(upstream.patch({"fakeup.core:scale": triple}, "fakeup.other:helper"))
    engine.enable(strict=True)
    found: Any = importlib.import_module("fakeup.other")
    assert engine.status().patches[0].state == "applied"
    found.helper = lambda _: 0
    assert engine.status().patches[0].state == "incomplete"


@pytest.mark.parametrize("late", [False, True])
def test_another_function_under_the_same_decorator_is_seen(
    upstream: Upstream, engine: Engine, late: bool
) -> None:
    @contextlib.contextmanager
    def context(value: Any) -> Iterator[Any]:
        yield value + 1

    core: Any = None
    if late:
        core = upstream.load()
        core.context = context
    engine.enable()
    core = core or upstream.load()
    assert engine.status().patches[0].in_force != late
    core.context = context
    assert not engine.status().patches[0].in_force


def test_another_function_of_the_same_file_is_seen_before_too(upstream: Upstream, engine: Engine) -> None:
    core: Any = upstream.load()
    core.helper = core.Engine.run
    engine.enable()
    (found,) = engine.status().patches
    assert found.verdict is not None
    assert found.verdict.verdict == "conflict"


def test_a_file_that_changed_since_its_import_is_a_conflict(upstream: Upstream, engines: Engines) -> None:
    upstream.write(core=CORE, other="def helper(value):\n    return value * 2\n")
    importlib.import_module("fakeup.other")
    upstream.write(other="def helper(value):\n    return value\n")
    engine = engines(upstream.patch({"fakeup.core:scale": triple}, "fakeup.other:helper"))
    engine.enable()
    upstream.load()
    (found,) = engine.status().patches
    assert found.verdict is not None
    assert found.verdict.verdict == "conflict"


@pytest.mark.parametrize("late", [False, True])
def test_a_name_that_its_module_imports_is_compared_too(
    upstream: Upstream, engines: Engines, late: bool
) -> None:
    upstream.write(**FAR)
    engine = engines(upstream.patch({"fakeup.core:scale": triple}, "fakeup.core:helper"))
    there: Any = upstream.load() if late else None
    if late:
        there.helper = lambda value: value
        with pytest.raises(PatchError, match=r"fakeup\.core:helper is relied on, and was replaced by"):
            engine.enable(strict=True)
        return
    engine.enable(strict=True)
    there = upstream.load()
    there.helper = lambda value: value
    assert engine.status().patches[0].state == "incomplete"


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_one_patch_replaces_an_imported_name_on_which_another_relies(
    upstream: Upstream, engines: Engines, names: str
) -> None:
    upstream.write(**FAR)
    relies = upstream.patch({"fakeup.core:scale": triple}, "fakeup.core:helper", name=f"fakeup.{names[0]}")
    replaces = upstream.patch({"fakeup.core:helper": around_helper}, name=f"fakeup.{names[1]}")
    engines(relies, replaces).enable(strict=True)
    there: Any = upstream.load()
    assert (there.helper(1), there.scale(1)) == (2, 200)


@pytest.mark.parametrize("late", [False, True])
def test_another_file_than_was_decided_on_is_seen(
    upstream: Upstream, engines: Engines, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """Under the upstream's name, once another import has had everything decided."""
    upstream.write(
        core=CORE, first="def f():\n    return 1\n", other="def helper(value):\n    return value\n"
    )
    (upstream.root / "own.py").write_text("def helper(value):\n    return value + 1\n")
    engine = engines(
        upstream.patch({"fakeup.first:f": lambda original, _: lambda: original() + 1}, name="fakeup.first"),
        upstream.patch({"fakeup.core:scale": triple}, "fakeup.other:helper"),
    )
    engine.enable(strict=True)
    upstream.load("fakeup.core" if late else "fakeup.first")
    spec: Any = importlib.util.spec_from_file_location("fakeup.other", upstream.root / "own.py")
    own = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "fakeup.other", own)
    spec.loader.exec_module(own)
    said = "fakeup.other:helper is relied on, and was replaced by "
    if late:
        found = next(one for one in engine.status().patches if one.patch == "fakeup.scale")
        assert (found.state, found.in_force) == ("incomplete", False)
        assert said in found.reason
    else:
        with pytest.raises(PatchError, match=said):
            upstream.load()


@pytest.mark.parametrize(("change", "state"), [(timed, "incomplete"), (lambda _: len, "skipped")])
def test_a_timer_between_two_imports_stops_no_job(
    upstream: Upstream, engines: Engines, change: Callable[[Any], Any], state: str
) -> None:
    """Overlay was first. A function that doesn't call the one which is relied on is a conflict."""
    upstream.write(core=CORE, other="def helper(value):\n    return value\n")
    engine = engines(upstream.patch({"fakeup.core:scale": triple}, "fakeup.other:helper"))
    engine.enable(strict=state == "incomplete")
    other: Any = importlib.import_module("fakeup.other")
    other.helper = change(other.helper)
    upstream.load()
    (found,) = engine.status().patches
    assert (found.state, found.in_force) == (state, state == "incomplete")


@pytest.mark.parametrize("site", ["helper", "scale"])
def test_a_profiler_may_pad_the_code(upstream: Upstream, engine: Engine, site: str) -> None:
    """As line_profiler does, to tell functions apart."""
    engine.enable()
    function = vars(upstream.load())[site]
    engine.status()
    code = function.__code__
    function.__code__ = code.replace(co_code=code.co_code + bytes([opmap["NOP"], 0]) * 3)
    assert engine.status().patches[0].state == "applied"


def test_what_is_taken_away_later_is_seen(upstream: Upstream, engine: Engine) -> None:
    engine.enable()
    core: Any = upstream.load()
    engine.status()
    core.helper = None
    assert not engine.status().patches[0].in_force


def test_an_upstream_may_put_there_what_the_patch_replaces(upstream: Upstream, engines: Engines) -> None:
    """As slime's own patch of Megatron, which is what overlay wraps."""
    theirs = """
        from fakeup import core

        def helper(value):
            return value + 5

        core.helper = helper
        """
    upstream.write(core=CORE, theirs=theirs)
    patch = upstream.patch({"fakeup.theirs:helper": around_helper}, "fakeup.core:helper")
    engine = engines(patch)
    engine.enable(strict=True)
    core: Any = upstream.load()
    importlib.import_module("fakeup.theirs")
    assert engine.status().patches[0].state == "applied"
    assert core.helper(1) == 12
    core.helper = timed(core.helper)
    assert engine.status().patches[0].in_force
