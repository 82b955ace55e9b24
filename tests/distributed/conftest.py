"""Releases of Megatron-Core for the tests of this folder, and what the ranks found on each of them."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from repetitions import pytest_runtest_setup

from sources import fetch_release

__all__ = ["pytest_runtest_setup"]


@functools.cache
def folder_of(version: str) -> Path | str:
    """Return the folder of a release of megatron-core, or why there is none."""
    try:
        return fetch_release.fetch(f"megatron-core=={version}")
    except fetch_release.FetchError as error:
        return str(error)  # kept: without a network each further test would wait for it again


@pytest.fixture
def megatron(request: pytest.FixtureRequest) -> Path:
    """Return the folder of the release that the test is parametrised with, or skip the test."""
    found = folder_of(str(request.param))
    if isinstance(found, str):
        pytest.skip(found)
    return found
