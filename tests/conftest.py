"""What each test begins with: a log that an earlier test of this process has not silenced or used up."""

from __future__ import annotations

import pytest

from overlay import log


@pytest.fixture(autouse=True)
def fresh_log() -> None:
    """Give each test the log of a new process: level `info`, no warning said."""
    log.set_level("info")
