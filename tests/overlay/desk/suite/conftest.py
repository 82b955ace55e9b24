"""The tiny upstream that the tests of suites share."""

from __future__ import annotations

from pathlib import Path

import pytest
from suite_project import Workplace


@pytest.fixture
def workplace(tmp_path: Path) -> Workplace:
    """Return a workplace of this test's own."""
    return Workplace(tmp_path)
