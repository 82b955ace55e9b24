"""What all tests of a whole run share: what is left to the nightly run, and a server for programs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from repetitions import pytest_runtest_setup

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["pytest_runtest_setup"]


@pytest.fixture(scope="session", autouse=True)
def warm_server() -> Generator[None]:
    """Start programs on a warm server, where `scripts/test` asks for it: a single test is quicker without."""
    if not os.environ.get("TESTS_WARM"):
        yield
        return
    from overlay.compat.ranks import warm

    with warm.server() as path, pytest.MonkeyPatch.context() as environ:
        environ.setenv(warm.VARIABLE, path)
        yield
