"""What the tests of this folder leave to the nightly run, and the log that each of them begins with."""

from __future__ import annotations

import pytest
from repetitions import pytest_runtest_setup

from overlay import log

__all__ = ["pytest_runtest_setup"]


@pytest.fixture(autouse=True)
def fresh_log() -> None:
    """Give each test the log of a new process: an earlier test may have silenced it, or said the warning."""
    log.set_level("info")
