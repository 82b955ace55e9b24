"""What is left to the nightly run: cases that others stand for by day.

A file or a test says `nightly(REASON, PARAMETER=(VALUE...))` of the values of a parameter that others stand
for by day: the same code, on more ranks or on another release, at a price of minutes. Without a parameter the
whole test is left. By day `TESTS_ONCE` is in the environment, as `scripts/test` sets it.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

#: What a reason begins with (`scripts/testing/suite.py` counts these).
LEFT = "left to the nightly run"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave a test to the nightly run if that is what it says."""
    if not os.environ.get("TESTS_ONCE"):
        return
    params: Any = getattr(getattr(item, "callspec", None), "params", {})
    for left in item.iter_markers("nightly"):
        if not left.kwargs or any(params.get(name) in values for name, values in left.kwargs.items()):
            pytest.skip(f"{LEFT}: {left.args[0]}")
