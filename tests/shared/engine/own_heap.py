"""A heap of its own for each test: what a conftest of tests of the engine imports."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from overlay.runtime import search


@pytest.fixture(autouse=True)
def own_heap(request: pytest.FixtureRequest) -> Iterator[None]:
    """Hide from the collector what was there before the test: nobody in there holds what the test imports.

    The engine looks through the heap for whoever holds a function. In a run of all tests that is some
    millions of objects, of torch and of the tests that were collected, for each of hundreds of tests.
    """
    if "whole_heap" in request.fixturenames:
        yield
        return
    counted = search.frozen
    gc.freeze()
    search.frozen = lambda: False
    yield
    search.frozen = counted
    gc.unfreeze()


@pytest.fixture
def whole_heap() -> None:
    """Leave the heap as it is, for a test that freezes it itself."""
