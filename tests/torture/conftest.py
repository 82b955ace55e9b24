"""Fixtures of the engine, and the upstream on which orders of steps are tried."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from engine_fixtures import enabled, engines, own_heap, upstream, whole_heap
from order_world import Subject, write_upstream
from repetitions import pytest_runtest_setup

__all__ = ["enabled", "engines", "own_heap", "pytest_runtest_setup", "subject", "upstream", "whole_heap"]


@pytest.fixture
def subject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Subject:
    """Write the upstream on which orders of steps are tried, and make it importable."""
    monkeypatch.setenv("OVERLAY_LOG", "off")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    patch = write_upstream(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return Subject({patch.id: patch})
