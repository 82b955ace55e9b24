"""What the tests leave to the nightly run, and what they do not hold to the clock."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from repetitions import pytest_runtest_setup

__all__ = ["pytest_runtest_setup"]

# How long an example takes, or is drawn for, says how busy the machine is.
settings.register_profile("patient", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
