"""Enabling and disabling: all or nothing, once, and back to the very objects."""

from __future__ import annotations

import functools
import inspect
import os
import pickle
from typing import Any

import pytest
import wrapt
from fake_upstream import TESTED, Engines, Upstream, failing, tables, triple
from order_world import make_fixed, make_run
from threads import at_once

from overlay.errors import OverlayError, PatchError, SelectionError
from overlay.patch import around
from overlay.runtime.engine import Engine
from overlay.runtime.search import ORIGINAL

broken = failing("no torch here", ImportError)


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def snapshot(module: Any) -> dict[str, int]:
    """Return the identity of everything in a module and its class (objects would be aliases)."""
    both = {**vars(module), **{f"Engine.{name}": value for name, value in vars(module.Engine).items()}}
    return {name: id(value) for name, value in both.items()}


@pytest.fixture
def debug(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what a process does for itself in the log."""
    monkeypatch.setenv("OVERLAY_LOG", "debug")


@pytest.mark.usefixtures("debug")
def test_apply_on_import_with_one_exact_line(
    upstream: Upstream, engines: Engines, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = engines(upstream.patch())
    assert engine.enable().patches[0].state == "waiting"
    assert lines(capsys) == []
    core = upstream.load()
    assert core.scale(2) == 400
    assert lines(capsys) == ["overlay: applied fakeup.scale to fakeup 1.2.0 (1 site)"]
    user = upstream.load("fakeup.user")
    assert user.use(2) == 400
    status = engine.status().patches[0]
    assert (status.state, status.sites[0].state) == ("applied", "applied")


@pytest.mark.usefixtures("debug")
def test_a_patch_of_two_modules_is_said_to_be_applied_when_both_are_there(
    upstream: Upstream, enabled: Engines, capsys: pytest.CaptureFixture[str]
) -> None:
    sites = {"fakeup.core:scale": triple, "fakeup.user:use": lambda original, _: lambda value: 7}
    enabled(upstream.patch(sites))
    upstream.load()
    assert lines(capsys) == []
    upstream.load("fakeup.user")
    assert lines(capsys) == ["overlay: applied fakeup.scale to fakeup 1.2.0 (2 sites)"]


def by_wraps(original: Any, _: object) -> Any:
    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        return 100 * original(*args, **kwargs)

    return replacement


@around
def by_around(original: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    return 100 * original(value, *args, **kwargs)


@pytest.mark.parametrize("make", [triple, by_wraps, by_around])
def test_a_replacement_is_a_plain_function_that_looks_like_the_original_and_is_no_wrapper_of_it(
    upstream: Upstream, enabled: Engines, make: Any
) -> None:
    """`torch.jit.script` follows `__wrapped__`, and the engine takes what has it for somebody else's."""
    engine = enabled(upstream.patch({"fakeup.core:scale": make}), strict=True)
    core = upstream.load()
    scale = core.scale
    named = (scale.__name__, scale.__qualname__, scale.__module__, scale.__doc__)
    assert named == ("scale", "scale", "fakeup.core", "Scale.")
    assert inspect.unwrap(scale) is scale
    assert str(inspect.signature(scale)) == "(value, factor=2)"
    assert pickle.loads(pickle.dumps(scale)) is scale  # noqa: S301
    assert (scale(2), scale(value=2, factor=3), getattr(scale, ORIGINAL)(2)) == (400, 600, 4)
    engine.disable()
    assert core.scale(2) == 4


@pytest.mark.usefixtures("debug")
def test_many_times_is_once(upstream: Upstream, engines: Engines, capsys: pytest.CaptureFixture[str]) -> None:
    engine = engines(upstream.patch())
    core = upstream.load()
    for _ in range(9):
        engine.enable()
    assert core.scale(1) == 200
    assert len(lines(capsys)) == 1
    engine.disable()
    engine.disable()
    assert core.scale(1) == 2
    assert [(one.state, one.reason) for one in engine.status().patches] == [("reverted", "")]
    engine.enable()
    assert core.scale(1) == 200


def test_a_session_that_put_nothing_in_place_leaves_what_is_known_of_the_one_before(
    upstream: Upstream, engines: Engines
) -> None:
    refusing = upstream.patch({"fakeup.core:Engine.run": failing("no")}, name="fakeup.refusing")
    engine, core = engines(refusing, upstream.patch()), upstream.load()
    engine.enable("fakeup.scale")
    assert core.scale(1) == 200
    engine.disable()
    with pytest.raises(PatchError):
        engine.enable(strict=True)
    assert {one.patch: (one.state, one.reason) for one in engine.status().patches} == {
        "fakeup.scale": ("reverted", ""),
        "fakeup.refusing": ("failed", "RuntimeError: no"),
    }


def test_what_was_disabled_before_its_import_was_never_in_place(upstream: Upstream, enabled: Engines) -> None:
    engine = enabled(upstream.patch())
    engine.disable()
    assert [(one.state, one.reason) for one in engine.status().patches] == [("waiting", "was never in place")]


def test_enabling_again_with_other_settings_is_an_error(upstream: Upstream, engines: Engines) -> None:
    engine = engines(upstream.patch())
    engine.enable("all")
    engine.enable("fakeup.*", strict=False)
    with pytest.raises(OverlayError, match=r"already enabled, with patches='all' and strict=False"):
        engine.enable("none")
    with pytest.raises(OverlayError, match="disable"):
        engine.enable(strict=True)
    with pytest.raises(SelectionError):
        engine.enable("fakeup.skale")


def test_all_sites_or_none_within_a_module(
    upstream: Upstream, engines: Engines, capsys: pytest.CaptureFixture[str]
) -> None:
    core = upstream.load()
    before = snapshot(core)
    engine = engines(upstream.patch({"fakeup.core:Engine.run": make_run, "fakeup.core:scale": broken}))
    status = engine.enable()
    assert status.patches[0].state == "failed"
    assert "ImportError: no torch here" in status.patches[0].reason
    assert snapshot(core) == before
    assert lines(capsys) == [
        "overlay: NOT applied fakeup.scale to fakeup 1.2.0: failed: ImportError: no torch here"
    ]


def test_all_sites_or_none_across_modules(upstream: Upstream, enabled: Engines) -> None:
    engine = enabled(upstream.patch({"fakeup.core:scale": triple, "fakeup.user:use": failing("no")}))
    core = upstream.load()
    assert core.scale(1) == 200
    assert engine.status().patches[0].state == "waiting"  # half of it is there, half is not imported
    user = upstream.load("fakeup.user")
    assert core.scale(1) == user.use(1) == 2
    assert engine.status().patches[0].state == "failed"


NO_FUNCTION, OTHER_PARAMETERS = "not a plain function", "the replacement of fakeup.core:scale takes"


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (print, NO_FUNCTION),
        (None, NO_FUNCTION),
        (type("C", (), {"__call__": lambda self, value, factor=2: 1})(), NO_FUNCTION),
        (lambda value: 1, OTHER_PARAMETERS),
        (lambda value, factor=3: 1, OTHER_PARAMETERS),
        (lambda *args: 1, OTHER_PARAMETERS),
    ],
)
def test_what_is_no_replacement_is_refused(
    upstream: Upstream, enabled: Engines, made: Any, words: str
) -> None:
    engine = enabled(upstream.patch({"fakeup.core:scale": lambda original, module: made}))
    assert upstream.load().scale(1) == 2
    assert words in engine.status().patches[0].reason


def test_an_unknown_source_is_loud_and_touches_nothing(
    upstream: Upstream, enabled: Engines, capsys: pytest.CaptureFixture[str]
) -> None:
    patch = upstream.patch()
    upstream.write(core="def scale(value, factor=2):\n    return value + factor\n")
    engine = enabled(patch)
    assert upstream.load().scale(1) == 3
    (line,) = lines(capsys)
    assert line.startswith(
        "overlay: NOT applied fakeup.scale to fakeup 1.2.0: unknown-source: the patch was "
    )
    assert engine.status().patches[0].state == "skipped"


@pytest.mark.usefixtures("debug")
def test_a_quiet_verdict_is_logged_as_a_skip(
    upstream: Upstream, enabled: Engines, capsys: pytest.CaptureFixture[str]
) -> None:
    patch = upstream.patch()
    (row,) = TESTED
    TESTED.append(row.replace(verdict="not-needed", variant="", evidence="2.0 does it"))
    upstream.version("2.0")
    enabled(patch, strict=True)
    assert upstream.load().scale(1) == 2
    assert lines(capsys) == ["overlay: skipped fakeup.scale on fakeup 2.0: not-needed: 2.0 does it"]


def test_strict_mode_raises_from_enable_when_the_module_is_there(
    upstream: Upstream, engines: Engines
) -> None:
    core = upstream.load()
    before = snapshot(core)
    good = upstream.patch({"fakeup.core:Engine.run": make_run}, name="fakeup.aaa")
    engine = engines(
        good,
        upstream.patch({"fakeup.core:scale": broken}),
        upstream.patch({"fakeup.user:use": triple}, name="fakeup.zzz"),
    )
    with pytest.raises(
        PatchError,
        match=r"fakeup\.scale failed: ImportError: no torch here .*OVERLAY_PATCHES=-fakeup\.scale",
    ):
        engine.enable(strict=True)
    assert not engine.status().enabled
    assert snapshot(core) == before


def test_inherited_methods_are_refused(upstream: Upstream, engines: Engines) -> None:
    engine = engines(upstream.patch({"fakeup.core:Engine.run": make_run}))
    core = upstream.load()
    run = core.Engine.run
    del core.Engine.run
    base = type("Base", (), {"run": run})
    core.Engine = type("Engine", (base,), {})  # type: ignore[attr-defined]
    engine.enable()
    assert "run" not in vars(core.Engine)
    assert "inherited" in engine.status().patches[0].reason


def test_threads_enable_and_disable_at_once(upstream: Upstream, engines: Engines) -> None:
    engine = engines(
        upstream.patch(), upstream.patch({"fakeup.core:Engine.run": make_run}, name="fakeup.run")
    )
    core = upstream.load()
    before = snapshot(core)

    def work(_number: int) -> None:
        for _ in range(20):
            engine.enable()
            engine.status()
            engine.disable()

    at_once(work, 8)
    engine.disable()
    assert snapshot(core) == before
    engine.enable()
    assert core.scale(1) == 200


@pytest.mark.parametrize("then", ["disable", "enable"])
@pytest.mark.parametrize("place", ["runtime.entry.take_out", "runtime.sites.rebind"])
def test_an_interrupted_disable_is_gone_on_with(
    upstream: Upstream, enabled: Engines, monkeypatch: pytest.MonkeyPatch, place: str, then: str
) -> None:
    core, user = upstream.load(), upstream.load("fakeup.user")
    before = snapshot(core), id(user.scale)
    engine = enabled(upstream.patch({"fakeup.core:scale": triple, "fakeup.core:Engine.run": make_run}))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"overlay.{place}", interrupt)
        with pytest.raises(KeyboardInterrupt):
            engine.disable()
    if then == "enable":
        engine.enable()
        assert core.scale(1) == user.use(1) == 200
    engine.disable()
    assert (snapshot(core), id(user.scale)) == before
    assert engine.status().patches[0].state == "reverted"


def by_hand(original: Any, _module: Any) -> Any:
    @functools.wraps(original)
    def scale(value: Any, factor: int = 2) -> Any:
        return original(value, factor) * 100

    return scale


@pytest.mark.parametrize(
    "make", [by_hand, around(lambda original, value, factor=2: 100 * original(value, factor))]
)
@pytest.mark.parametrize("default", [2, 5])
def test_a_default_that_is_not_the_one_of_the_original_is_refused(
    upstream: Upstream, engines: Engines, make: Any, default: int
) -> None:
    """One that is evaluated as the module is imported is not in its source."""
    engine = engines(upstream.patch({"fakeup.core:scale": make}))
    core = upstream.load()
    core.scale.__defaults__ = (default,)
    status = engine.enable().patches[0]
    assert (status.state, core.scale(1)) == (("applied", 200) if default == 2 else ("failed", 5))
    assert ("has factor=2, the original factor=5" in status.reason) == (default == 5)


def test_packs_that_are_asked_for_later_are_loaded_before_the_next_session(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody has asked what is there first, as in a notebook."""
    patch = upstream.patch()
    engine = Engine(lambda: {patch.id: patch} if os.environ.get("OVERLAY_PACKS") else {}, table=tables())
    assert engine.plan().verdicts == ()
    monkeypatch.setenv("OVERLAY_PACKS", "acme")
    try:
        assert engine.enable(strict=True).selection == (patch.id,)
        monkeypatch.delenv("OVERLAY_PACKS")
        assert upstream.load().scale(1) == 200
        assert [*engine.known()] == [patch.id]
    finally:
        engine.disable()
    assert not engine.known()


def test_a_wrapper_of_wrapt_around_a_static_method_is_a_conflict(
    upstream: Upstream, engines: Engines
) -> None:
    """It says that it is an instance of what it wraps."""
    core = upstream.load()
    wrapt.wrap_function_wrapper(core, "Engine.fixed", lambda *_: 7)
    engine = engines(upstream.patch({"fakeup.core:Engine.fixed": make_fixed}))
    with pytest.raises(PatchError, match="fixed is a FunctionWrapper in the imported module"):
        engine.enable(strict=True)
