"""References to the original that were taken before the patch."""

from __future__ import annotations

import functools
import gc
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from fake_upstream import triple

from overlay.errors import PatchError

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_upstream import Upstream

    from overlay._engine import Engine

    Engines = Callable[..., Engine]

USER = """
import functools
import fakeup.core
from fakeup.core import scale
from fakeup.core import scale as other

alias = fakeup.core.Engine.fixed

class Holder:
    attribute = scale
    copied = staticmethod(scale)

def default(value, call=scale, *, keyword=scale):
    return call(value), keyword(value)

bound = functools.partial(scale, factor=5)
mapped = functools.partial(map, scale)
"""


def load(upstream: Upstream) -> Any:
    upstream.write(user=USER)
    return upstream.load("fakeup.user")


def test_modules_classes_defaults_and_partials_are_rebound_and_restored(
    upstream: Upstream, engines: Engines
) -> None:
    user = load(upstream)
    core = upstream.load()
    original, defaults = core.scale, user.default.__defaults__
    engine = engines(upstream.patch())
    status = engine.enable().patches[0]
    assert user.scale is user.other is core.scale is not original
    assert vars(user.Holder)["attribute"] is core.scale
    assert user.default(1) == (200, 200)
    assert user.bound(1) == 500
    assert list(user.mapped([1])) == [200]
    assert set(status.sites[0].rebound) == {
        "fakeup.user:scale", "fakeup.user:other", "fakeup.user:Holder.attribute", "a functools.partial",
        "an argument of a functools.partial",
        "a default of fakeup.user:default", "the default of keyword in fakeup.user:default",
    }  # fmt: skip
    engine.disable()
    assert user.scale is user.other is core.scale is vars(user.Holder)["attribute"] is original
    assert user.default.__defaults__ is defaults
    assert user.default(1) == (2, 2)
    assert user.bound(1) == 5
    assert user.bound.func is user.mapped.args[0] is original


def test_a_site_that_is_an_imported_name_is_that_name_alone(upstream: Upstream, engines: Engines) -> None:
    user, core = load(upstream), upstream.load()
    original = core.scale
    engine = engines(upstream.patch({"fakeup.user:scale": triple}))
    status = engine.enable().patches[0]
    assert status.state == "applied"
    assert status.sites[0].rebound == ()
    assert user.scale(1) == 200
    assert core.scale is user.other is original
    assert pickle.loads(pickle.dumps(user.scale)) is user.scale  # noqa: S301
    engine.disable()
    assert user.scale is original


def test_an_alias_in_the_module_itself(upstream: Upstream, engines: Engines) -> None:
    text = (upstream.root / "fakeup/core.py").read_text()
    upstream.write(core=text + "\nagain = scale\n")
    core = upstream.load()
    engines(upstream.patch()).enable()
    assert core.again(1) == core.scale(1) == 200


@pytest.mark.parametrize(
    ("hold", "words"),
    [
        (lambda f: [f], "an item of a list"),
        (lambda f: {"k": f}, "the entry 'k' of a dict"),
        (lambda f: lambda value: f(value) + 1, "the closure of"),
        (lambda f: functools.partial(map, key=f), "the entry 'key' of a dict"),
        (lambda f: f.__get__(object()), "a bound method of object"),
        (lambda f: (f, 1), "an item of a tuple"),
    ],
)
def test_what_cannot_be_rebound_is_named(
    upstream: Upstream, engines: Engines, capsys: pytest.CaptureFixture[str], hold: Any, words: str
) -> None:
    core = upstream.load()
    held = hold(core.scale)
    gc.collect()
    engine = engines(upstream.patch())
    status = engine.enable().patches[0]
    assert status.state == "incomplete"
    assert f"fakeup.core:scale is still held by {words}" in status.reason
    log = capsys.readouterr().err
    assert "overlay: incomplete fakeup.scale@3 on fakeup 1.2.0: fakeup.core:scale is still held by" in log
    assert held is not None


def test_an_attribute_of_an_instance_is_named(upstream: Upstream, engines: Engines) -> None:
    core = upstream.load()

    class Thing:
        pass

    thing = Thing()
    thing.loss = core.scale  # type: ignore[attr-defined]
    status = engines(upstream.patch()).enable().patches[0]
    assert status.state == "incomplete"
    assert "attribute loss of a " in status.reason
    assert "Thing" in status.reason


def test_in_strict_mode_an_incomplete_patch_is_taken_out(upstream: Upstream, engines: Engines) -> None:
    core = upstream.load()
    held = [core.scale]
    engine = engines(upstream.patch())
    with pytest.raises(
        PatchError, match=r"incomplete: fakeup\.core:scale is still held by an item of a list"
    ):
        engine.enable(strict=True)
    assert core.scale is held[0]


def test_frozen_objects_are_found_too(upstream: Upstream, engines: Engines) -> None:
    """After `gc.freeze()`, which servers call, the collector no longer tells who holds what."""
    core, user = upstream.load(), load(upstream)
    gc.freeze()
    try:
        engines(upstream.patch()).enable()
        assert user.scale is user.other is core.scale
        assert user.scale(1) == 200
    finally:
        gc.unfreeze()
