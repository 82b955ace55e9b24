"""Fixtures: the fake upstream on the import path, and engines that are disabled afterwards."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_upstream import TESTED, Upstream, forget, tables
from own_heap import own_heap, whole_heap

from overlay.patch import Patch
from overlay.runtime.engine import Engine

__all__ = ["engines", "own_heap", "upstream", "whole_heap"]

#: By which launchers say what rank a process is.
RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID")


@pytest.fixture
def upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Upstream]:
    """Write the fake upstream, make it importable, and forget it afterwards."""
    for name in ("OVERLAY_PATCHES", "OVERLAY_STRICT", "OVERLAY_LOG", *RANKS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    made = Upstream(tmp_path)
    made.write()
    yield made
    forget()
    TESTED.clear()


@pytest.fixture
def engines() -> Iterator[Callable[..., Engine]]:
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
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows by each source that is parsed."""
    found: list[str] = []
    plain = ast.parse

    def parse(text: str, *more: Any, **named: Any) -> Any:
        found.append(text)
        return plain(text, *more, **named)

    monkeypatch.setattr(ast, "parse", parse)
    return found


@pytest.fixture
def enabled(engines: Callable[..., Engine]) -> Callable[..., Engine]:
    """Make engines over given patches, and enable them."""

    def make(*patches: Patch, strict: bool | None = None) -> Engine:
        engine = engines(*patches)
        engine.enable(strict=strict)
        return engine

    return make
