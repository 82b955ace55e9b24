"""What the tests leave to the nightly run."""

from __future__ import annotations

from repetitions import pytest_runtest_setup

__all__ = ["pytest_runtest_setup"]
