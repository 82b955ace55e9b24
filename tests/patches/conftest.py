"""The log that each test of this folder begins with."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from repetitions import pytest_runtest_setup

from overlay import log

__all__ = ["pytest_runtest_setup"]

# How long an example takes, or is drawn for, says how busy the machine is.
settings.register_profile("patient", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(autouse=True)
def fresh_log() -> None:
    """Give each test the log of a new process: an earlier test may have silenced it, or said the warning."""
    log.set_level("info")
