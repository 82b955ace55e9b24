"""The server on which programs of tests start warm: what a conftest of such tests imports.

No `tests/conftest.py` has it: pytest would put `tests` on the path, where `tests/overlay` is no overlay.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
from typing import TYPE_CHECKING

import pytest

from overlay.compat.ranks import warm
from sources import fetch_release

if TYPE_CHECKING:
    from collections.abc import Generator


@functools.cache
def _started() -> str:
    """Return the socket of a server that ends with this process: one, however many folders ask for it."""
    kept = contextlib.ExitStack()
    atexit.register(kept.close)
    return kept.enter_context(warm.server())


@pytest.fixture(scope="session", autouse=True)
def warm_server() -> Generator[None]:
    """Start programs on a warm server, where `scripts/test` asks for it: a single test is quicker without."""
    with pytest.MonkeyPatch.context() as environ:
        if os.environ.get("TESTS_WARM"):
            environ.setenv(warm.VARIABLE, _started())
            environ.setenv("WARM_COMPILED", str(fetch_release.CACHE.resolve()))
        yield
