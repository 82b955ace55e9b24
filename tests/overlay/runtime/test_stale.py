"""What runs is what was decided on: a compiled file that is not of its source is found out."""

from __future__ import annotations

import importlib.util
import os
import py_compile
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_upstream import Upstream

    from overlay.runtime.engine import Engine


@pytest.mark.parametrize("stale", [False, True])
def test_a_compiled_file_of_another_source_is_a_conflict(
    upstream: Upstream, engines: Callable[..., Engine], stale: bool
) -> None:
    """Python takes it for that of a source of the same size and time, and runs it."""
    core = upstream.root / "fakeup/core.py"
    text, patch = core.read_text(), upstream.patch()
    other = text.replace("value * factor", "value + factor")
    assert other != text
    core.write_text(other if stale else text)
    os.utime(core, (1, 1))
    py_compile.compile(str(core), cfile=importlib.util.cache_from_source(str(core)))
    core.write_text(text)
    os.utime(core, (1, 1))
    engine = engines(patch)
    engine.enable(strict=False)
    assert upstream.load().scale(3) == (5 if stale else 600)
    (status,) = engine.status().patches
    assert status.state == ("skipped" if stale else "applied")
    if stale:
        assert "its file has changed since it was imported" in status.reason
