"""Others who patch the same upstream, before us and after us: detected, named, and never stacked twice."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import wrapt
from fake_upstream import Engines, Upstream


@pytest.fixture(autouse=True)
def nobody_patches_afterwards(upstream: Upstream, engines: Engines) -> Iterator[None]:
    yield
    mock.patch.stopall()


def by_setattr(core: Any, _enabled: Engines) -> None:
    original = core.scale

    def their_scale(value: Any, factor: Any = 2) -> Any:
        return original(value, factor) * 3

    core.scale = their_scale


def by_wraps(core: Any, _enabled: Engines) -> None:
    original = core.scale

    @functools.wraps(original)
    def scale(*given: Any, **named: Any) -> Any:
        return original(*given, **named) * 3

    core.scale = scale


def by_wrapt(core: Any, _enabled: Engines) -> None:
    def wrapper(wrapped: Any, instance: Any, given: Any, named: Any) -> Any:
        return wrapped(*given, **named) * 3

    wrapt.wrap_function_wrapper(core, "scale", wrapper)


def by_mock(core: Any, _enabled: Engines) -> None:
    original = core.scale
    mock.patch.object(core, "scale", side_effect=lambda *given: original(*given) * 3).start()


def by_another_overlay(core: Any, enabled: Engines) -> None:
    """A second engine with a patch of its own, as a fork of this project would be."""

    def make(original: Any, module: Any) -> Any:
        def scale(value: Any, factor: int = 2) -> Any:
            return original(value, factor) * 3

        return scale

    patch = Upstream(Path(core.__file__).parents[1]).patch({"fakeup.core:scale": make}, name="fakeup.theirs")
    enabled(patch)


#: How each does it, and what it is called when it stands where we want to be.
PATCHERS: dict[str, tuple[Callable[[Any, Engines], None], str]] = {
    "setattr": (by_setattr, "test_copatchers:by_setattr.<locals>.their_scale"),
    "functools.wraps": (by_wraps, "test_copatchers.py"),
    "wrapt": (by_wrapt, "FunctionWrapper"),
    "mock": (by_mock, "Mock"),
    "another overlay": (by_another_overlay, "fakeup.theirs of overlay"),
}


@pytest.mark.parametrize("name", PATCHERS)
def test_one_who_came_before_us_is_named_and_left_alone(
    upstream: Upstream, engines: Engines, enabled: Engines, name: str
) -> None:
    theirs, words = PATCHERS[name]
    patch, core = upstream.patch(), upstream.load()
    theirs(core, enabled)
    stands = id(core.scale)
    engine = engines(patch)
    for _ in range(3):
        status = engine.enable().patches[0]
        assert id(core.scale) == stands
        assert core.scale(1) == 6
        assert status.verdict is not None
        assert (status.state, status.verdict.verdict) == ("skipped", "conflict")
        assert words in status.reason
        engine.disable()
    assert id(core.scale) == stands


@pytest.mark.parametrize("name", [name for name in PATCHERS if name != "another overlay"])
def test_one_who_came_after_us_is_named_and_nothing_is_stacked_twice(
    upstream: Upstream, enabled: Engines, name: str
) -> None:
    theirs, words = PATCHERS[name]
    patch, core = upstream.patch(), upstream.load()
    engine = enabled(patch)
    theirs(core, enabled)
    stands = id(core.scale)
    for _ in range(3):
        status = engine.enable().patches[0]
        assert core.scale(1) == 600
        assert status.state == "incomplete"
        assert "was replaced since by" in status.reason
        assert words in status.reason
    for _ in range(3):
        engine.disable()
        assert id(core.scale) == stands
        # What they wrapped is ours, and theirs to give up. We do not come on top of it again.
        assert core.scale(1) == 600
        status = engine.enable().patches[0]
        assert core.scale(1) == 600
        assert status.verdict is not None
        assert status.verdict.verdict == "conflict"


def test_another_overlay_that_comes_after_us_stands_back(upstream: Upstream, enabled: Engines) -> None:
    patch, core = upstream.patch(), upstream.load()
    engine = enabled(patch)
    by_another_overlay(core, enabled)
    assert core.scale(1) == 200
    assert engine.status().patches[0].state == "applied"
    engine.disable()
    assert core.scale(1) == 2
