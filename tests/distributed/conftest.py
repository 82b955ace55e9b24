"""Releases of Megatron-Core for the tests of this folder, and what the ranks found on each of them."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from repetitions import pytest_runtest_setup

__all__ = ["folder_of", "megatron", "pytest_runtest_setup"]

ROOT = Path(__file__).resolve().parents[2]


@functools.cache
def folder_of(version: str) -> Path | str:
    """Return the folder of a release of megatron-core, or why there is none."""
    path = ROOT / "scripts" / "fetch_release.py"
    spec = importlib.util.spec_from_file_location("fetch_release_for_ranks", path)
    assert spec is not None
    assert spec.loader is not None
    script: Any = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = script
    spec.loader.exec_module(script)
    try:
        return Path(script.fetch(f"megatron-core=={version}"))
    except script.FetchError as error:
        return str(error)  # kept: without a network each further test would wait for it again


@pytest.fixture
def megatron(request: pytest.FixtureRequest) -> Path:
    """Return the folder of the release that the test is parametrised with, or skip the test."""
    found = folder_of(str(request.param))
    if isinstance(found, str):
        pytest.skip(found)
    return found
