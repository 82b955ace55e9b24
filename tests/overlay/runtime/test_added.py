"""Replacements that add something: a keyword, or a function where nothing stood."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import pytest
from fake_upstream import Engines, Upstream

from overlay.errors import PatchError
from overlay.patch import replaced


def with_keyword(original: Any, module: Any) -> Any:
    def scale(value: Any, factor: int = 2, *, shift: int = 0) -> Any:
        return original(value, factor) + shift

    return scale


def with_signature(original: Any, module: Any) -> Any:
    def scale(*args: Any, shift: int = 0, **kwargs: Any) -> Any:
        return original(*args, **kwargs) + shift

    given = inspect.signature(original)
    extra = inspect.Parameter("shift", inspect.Parameter.KEYWORD_ONLY, default=0)
    vars(scale)["__signature__"] = given.replace(parameters=[*given.parameters.values(), extra])
    return scale


def without_default(original: Any, module: Any) -> Any:
    def scale(value: Any, factor: int = 2, *, shift: int) -> Any:
        return original(value, factor) + shift

    return scale


def new_function(original: Any, module: Any) -> Any:
    assert original is None

    def halve(value: Any) -> Any:
        return module.scale(value, 1) / 2

    return halve


HALVE = replaced("fakeup.core:halve", new_function, new=True)


@pytest.mark.parametrize("make", [with_keyword, with_signature])
def test_a_keyword_is_taken_and_seen(upstream: Upstream, enabled: Engines, make: Any) -> None:
    scale = "fakeup.core:scale"
    change = replaced(scale, make, adds=("shift",))
    engine = enabled(upstream.patch({}, change), strict=True)
    core = upstream.load()
    assert core.scale(2, shift=1) == 5
    assert core.scale(2) == 4
    assert str(inspect.signature(core.scale)) == "(value, factor=2, *, shift=0)" or make is with_keyword
    assert "shift" in inspect.signature(core.scale).parameters
    engine.disable()
    assert "shift" not in inspect.signature(core.scale).parameters


@pytest.mark.parametrize(
    ("make", "adds"), [(with_keyword, ()), (with_keyword, ("shift", "lift")), (without_default, ("shift",))]
)
def test_a_parameter_that_was_not_announced_or_is_required_is_refused(
    upstream: Upstream, enabled: Engines, make: Any, adds: tuple[str, ...]
) -> None:
    scale = "fakeup.core:scale"
    change = replaced(scale, make, adds=adds)
    engine = enabled(upstream.patch({}, change))
    core = upstream.load()
    assert core.scale(1) == 2
    status = engine.status().patches[0]
    assert status.state == "failed"
    assert "the replacement of fakeup.core:scale takes" in status.reason


def test_a_function_comes_where_nothing_stood_and_goes_again(upstream: Upstream, enabled: Engines) -> None:
    core = upstream.load()
    before = {name: id(value) for name, value in vars(core).items()}
    engine = enabled(upstream.patch({}, HALVE), strict=True)
    assert core.halve(4) == 2.0
    assert pickle.loads(pickle.dumps(core.halve)) is core.halve  # noqa: S301
    assert (core.halve.__module__, core.halve.__qualname__) == ("fakeup.core", "halve")
    assert engine.status().patches[0].state == "applied"
    engine.enable()
    assert core.halve(4) == 2.0
    engine.disable()
    assert {name: id(value) for name, value in vars(core).items()} == before


def test_who_has_taken_a_function_that_is_new_is_told_of(
    upstream: Upstream, enabled: Engines, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = enabled(upstream.patch({}, HALVE), strict=True)
    core = upstream.load()
    core.alias = core.halve  # type: ignore[attr-defined]
    engine.disable()
    assert core.alias(4) == 2.0
    assert "left behind by fakeup.scale: fakeup.core:halve: something still holds" in capsys.readouterr().err


def test_a_function_that_somebody_else_put_there_is_a_conflict(upstream: Upstream, engines: Engines) -> None:
    core = upstream.load()
    theirs = vars(core)["halve"] = lambda value: value
    engine = engines(upstream.patch({}, HALVE))
    with pytest.raises(PatchError, match="halve is there"):
        engine.enable(strict=True)
    assert core.halve is theirs


def test_what_somebody_put_on_top_stays(upstream: Upstream, engines: Engines) -> None:
    engine = engines(upstream.patch({}, HALVE))
    core = upstream.load()
    engine.enable()
    theirs = vars(core)["halve"] = lambda value: value
    assert engine.status().patches[0].state == "incomplete"
    engine.disable()
    assert core.halve is theirs


def test_only_a_module_gets_what_is_new(upstream: Upstream, enabled: Engines) -> None:
    engine = enabled(upstream.patch({}, replaced("fakeup.core:Engine.halve", new_function, new=True)))
    core = upstream.load()
    assert not hasattr(core.Engine, "halve")
    assert "no name of a module" in engine.status().patches[0].reason
