"""What the tests of this folder share: fake upstreams, and what those of the engine and of ranks have too."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_upstream import Upstream, forget
from order_world import Subject, write_upstream
from own_heap import own_heap, whole_heap
from repetitions import pytest_runtest_setup

__all__ = ["own_heap", "pytest_runtest_setup", "subject", "upstream", "whole_heap"]


@pytest.fixture
def upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Upstream]:
    """Write the fake upstream, make it importable, and forget it afterwards."""
    for name in [name for name in os.environ if name.startswith("OVERLAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    made = Upstream(tmp_path)
    made.write()
    yield made
    forget()


@pytest.fixture
def subject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Subject:
    """Write the upstream on which orders of steps are tried, and make it importable."""
    monkeypatch.setenv("OVERLAY_LOG", "off")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    patch = write_upstream(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return Subject({patch.id: patch})
