"""Faults around the engine: none of them is silent, and none looks like a failed import."""

from __future__ import annotations

import copy
import importlib.util
import logging.config
import os
import sys
import threading
import time
import types
from collections.abc import Callable
from typing import Any

import pytest
from fake_upstream import Engines, Upstream, triple
from order_world import make_fixed, make_run
from threads import at_once

import overlay
from overlay.runtime import engine as _engine


def test_first_calls_of_several_threads_make_one_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    class SlowEngine(_engine.Engine):
        def __init__(self) -> None:
            time.sleep(0.05)
            super().__init__()

    monkeypatch.setattr("overlay.runtime.process._engine", None)
    monkeypatch.setattr(_engine, "Engine", SlowEngine)
    barrier = threading.Barrier(8)

    def work(_number: int) -> int:
        barrier.wait()
        return id(overlay._here())

    assert len(set(at_once(work, 8))) == 1


def test_without_packaging_patches_are_applied_all_the_same(
    upstream: Upstream, enabled: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "packaging.version", None)
    engine = enabled(upstream.patch())
    assert upstream.load().scale(1) == 200
    assert engine.status().patches[0].state == "applied"


class Raising:
    """As optional dependencies are stubbed: everything that is asked of it is an ImportError."""

    def __getattr__(self, name: str) -> Any:
        msg = f"{name} needs an optional dependency"
        raise ImportError(msg)


STUBS = {"raising": Raising, "bare": object, "namespace": lambda: types.SimpleNamespace(scale=len)}


@pytest.mark.parametrize("kind", STUBS)
def test_stubs_in_sys_modules(upstream: Upstream, enabled: Engines, kind: str) -> None:
    patch = upstream.patch()
    sys.modules["fakeup.core"] = STUBS[kind]()  # type: ignore[assignment]
    engine = enabled(patch)
    status = engine.status().patches[0]
    assert status.state in ("failed", "skipped")
    assert status.reason


@pytest.mark.parametrize(
    "configure",
    [lambda: logging.config.dictConfig({"version": 1}), lambda: logging.disable(logging.CRITICAL)],
)
def test_the_warning_survives_a_configuration_of_logging(
    upstream: Upstream, engines: Engines, capsys: pytest.CaptureFixture[str], configure: Callable[[], None]
) -> None:
    first = engines(upstream.patch())
    first.enable()
    upstream.load()
    first.disable()
    configure()
    capsys.readouterr()
    second = engines(upstream.patch({"fakeup.user:use": lambda original, module: None}))
    second.enable()
    upstream.load("fakeup.user")
    logging.disable(logging.NOTSET)
    assert "overlay: NOT applied" in capsys.readouterr().err


def test_a_logger_of_the_application_gets_what_logging_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []

    def make(
        name: Any, level: Any, file: Any, line: Any, text: Any, given: Any, _: Any, func: str, *more: Any
    ) -> Any:
        found.extend([func, *map(str, more)])
        return logging.LogRecord(name, level, file, line, text, given, None)

    monkeypatch.setattr(logging.getLogger("overlay"), "makeRecord", make)
    overlay.log.set_level("info")
    overlay.log.warning("said")
    assert found == ["overlay", "None", "None"]


def test_an_import_that_asks_for_the_status_does_not_wait_for_us(
    upstream: Upstream, engines: Engines
) -> None:
    """One thread enables, and a factory of it imports what another thread is importing."""
    inside, asked = threading.Event(), threading.Event()

    def reach(original: Any, module: Any) -> Any:
        inside.set()
        asked.wait(20)
        __import__("fakeup.plug")
        return triple(original, module)

    engine = engines(upstream.patch({"fakeup.core:scale": reach}))
    upstream.write(plug="import fakeup\nfakeup.callback()\n")
    core = upstream.load()

    def callback() -> None:
        asked.set()
        engine.status()

    upstream.load("fakeup").callback = callback  # type: ignore[attr-defined]
    threads = [threading.Thread(target=engine.enable, daemon=True)]
    threads[0].start()
    assert inside.wait(20)
    threads.append(threading.Thread(target=upstream.load, args=("fakeup.plug",), daemon=True))
    threads[1].start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert core.scale(1) == 200


@pytest.mark.parametrize("calls", [["status"], ["disable", "enable"]])
def test_what_another_thread_does_while_a_session_opens_is_no_trouble(
    upstream: Upstream, engines: Engines, capsys: pytest.CaptureFixture[str], calls: list[str]
) -> None:
    """It asks, or closes the session and opens one of its own."""
    left = [*calls]

    def work() -> None:
        while left:
            getattr(engine, left.pop(0))()

    def meanwhile(original: Any, module: Any) -> Any:
        del original  # or the session of the other thread would find somebody who holds it
        other = threading.Thread(target=work, daemon=True)
        other.start()
        other.join(30)
        assert not other.is_alive()
        return make_run(vars(module.Engine)["run"], module)

    sites = {"scale": triple, "Engine.run": meanwhile, "Engine.fixed": make_fixed}
    patches = [upstream.patch({f"fakeup.core:{at}": made}, name=f"fakeup.{at}") for at, made in sites.items()]
    engine, core = engines(*patches), upstream.load()
    engine.enable()
    assert capsys.readouterr().err == ""
    assert (core.scale(1), core.Engine().run(1), core.Engine.fixed(1)) == (200, 300, 102)
    engine.disable()
    assert (core.scale(1), core.Engine().run(1), core.Engine.fixed(1)) == (2, 2, 2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_the_child_of_a_fork_does_not_wait_for_a_thread_it_has_not(
    upstream: Upstream, engines: Engines
) -> None:
    inside, go = threading.Event(), threading.Event()
    parent = os.getpid()

    def slow(original: Any, module: Any) -> Any:
        if os.getpid() == parent:
            inside.set()
            go.wait(30)
        return triple(original, module)

    engine = engines(upstream.patch({"fakeup.core:scale": slow}))
    upstream.load()
    thread = threading.Thread(target=engine.enable)
    thread.start()
    assert inside.wait(20)
    child = os.fork()
    if child == 0:  # pragma: no cover -- another process
        import signal

        signal.alarm(60)
        engine.note_fork()
        status = engine.status()
        os._exit(0 if status.patches[0].state == "applied" else 1)
    _, code = os.waitpid(child, 0)
    go.set()
    thread.join(30)
    assert code == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ImportWarning")
def test_the_loader_of_a_spec_can_be_copied_and_used_in_the_old_way(
    upstream: Upstream, enabled: Engines
) -> None:
    enabled(upstream.patch())
    upstream.load("fakeup")
    spec = importlib.util.find_spec("fakeup.core")
    assert spec is not None
    assert spec.loader is not None
    assert type(copy.copy(spec.loader)) is type(spec.loader)
    assert spec.loader.load_module("fakeup.core").scale(1) == 200
