"""What tests of the engine are given: the fake upstream, engines over patches, and a heap of their own."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_upstream import TESTED, Engines, Upstream, forget, tables

from overlay.patch import Patch
from overlay.runtime import search
from overlay.runtime.engine import Engine

#: By which launchers say what rank a process is.
RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID")


@pytest.fixture
def upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Upstream]:
    """Write the fake upstream, make it importable, and forget it afterwards."""
    for name in [name for name in os.environ if name.startswith("OVERLAY_") or name in RANKS]:
        monkeypatch.delenv(name)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    made = Upstream(tmp_path)
    made.write()
    yield made
    forget()
    TESTED.clear()


@pytest.fixture
def engines() -> Iterator[Engines]:
    """Make engines over given patches, and disable them afterwards."""
    made: list[Engine] = []

    def make(*patches: Patch) -> Engine:
        engine = Engine(lambda: {patch.id: patch for patch in patches}, table=tables())
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.disable()


@pytest.fixture
def enabled(engines: Engines) -> Engines:
    """Make engines over given patches, and enable them."""

    def make(*patches: Patch, strict: bool | None = None) -> Engine:
        engine = engines(*patches)
        engine.enable(strict=strict)
        return engine

    return make


@pytest.fixture(autouse=True)
def own_heap(request: pytest.FixtureRequest) -> Iterator[None]:
    """Hide from the collector what was there before the test: nobody in there holds what the test imports.

    The engine looks through the heap for whoever holds a function. In a run of all tests that is some
    millions of objects, of torch and of the tests that were collected, for each of hundreds of tests.
    """
    if "whole_heap" in request.fixturenames:
        yield
        return
    counted = search.frozen
    gc.freeze()
    search.frozen = lambda: False
    yield
    search.frozen = counted
    gc.unfreeze()


@pytest.fixture
def whole_heap() -> None:
    """Leave the heap as it is, for a test that freezes it itself."""
