"""Releases of Megatron-Core for the tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from listed_sources import Listed, listed
from repetitions import pytest_runtest_setup

__all__ = ["listed", "pytest_runtest_setup"]


@pytest.fixture
def megatron(request: pytest.FixtureRequest, listed: Listed) -> Path:
    """Return the folder of the release that the test is parametrised with, or skip the test."""
    return listed(f"megatron-core=={request.param}")
