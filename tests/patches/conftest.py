"""The log that each test of this folder begins with."""

from __future__ import annotations

import pytest

from overlay import log


@pytest.fixture(autouse=True)
def fresh_log() -> None:
    """Give each test the log of a new process: an earlier test may have silenced it, or said the warning."""
    log.set_level("info")
