"""Where the source of a target lies, and how it comes into the process, are no business of a patch."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from typing import Any

import pytest
from fake_upstream import PROJECT, Engines, Upstream, triple
from threads import at_once

from overlay.ledger import PatchStatus
from overlay.runtime.engine import Engine


def told(engine: Engine) -> PatchStatus:
    return engine.status().patches[0]


def test_a_file_and_a_folder_that_nobody_may_write(upstream: Upstream, enabled: Engines) -> None:
    patch, folder = upstream.patch(), upstream.root / "fakeup"
    (folder / "core.py").chmod(0o400)
    folder.chmod(0o500)
    try:
        engine = enabled(patch)
        assert upstream.load().scale(1) == 200
        assert told(engine).state == "applied"
        assert not list(folder.rglob("*.pyc"))
    finally:
        folder.chmod(0o700)


@pytest.mark.parametrize("when", ["before enable", "after the import"])
def test_a_source_that_is_gone_since_the_import(upstream: Upstream, enabled: Engines, when: str) -> None:
    patch, core = upstream.patch(), None
    if when == "before enable":
        core = upstream.load()
        (upstream.root / "fakeup/core.py").unlink()
        engine = enabled(patch)
        assert core.scale(1) == 2
        assert (told(engine).state, told(engine).sites) == ("skipped", ())
        assert "fakeup.core" in told(engine).reason
    else:
        engine = enabled(patch)
        core = upstream.load()
        (upstream.root / "fakeup/core.py").unlink()
        assert told(engine).state == "applied"
        engine.enable()
        assert core.scale(1) == 200
        engine.disable()
        assert core.scale(1) == 2


@pytest.mark.parametrize("instead", ["folder", "empty", "nonsense", "unreadable"])
def test_a_source_that_is_none_any_more(upstream: Upstream, enabled: Engines, instead: str) -> None:
    patch, core = upstream.patch(), upstream.load()
    path = upstream.root / "fakeup/core.py"
    if instead == "folder":
        path.unlink()
        path.mkdir()
    elif instead == "unreadable":
        path.chmod(0)
        if os.access(path, os.R_OK):
            pytest.skip("this user may read everything")
    else:
        path.write_text({"empty": "", "nonsense": "def ("}[instead])
    engine = enabled(patch)
    assert core.scale(1) == 2
    assert told(engine).state == "skipped"
    assert told(engine).reason


def test_a_package_without_init(upstream: Upstream, enabled: Engines) -> None:
    (upstream.root / "fakeup/__init__.py").unlink()
    engine = enabled(upstream.patch())
    core, user = upstream.load(), upstream.load("fakeup.user")
    assert core.scale(1) == user.use(1) == 200
    assert told(engine).state == "applied"
    engine.disable()
    assert core.scale(1) == user.use(1) == 2


@pytest.mark.parametrize("late", [False, True])
def test_many_threads_import_one_target_at_once(upstream: Upstream, engines: Engines, late: bool) -> None:
    """With `late`, others enable overlay in the meantime."""
    made: list[int] = []

    def make(original: Any, module: Any) -> Any:
        made.append(1)
        return triple(original, module)

    text = (upstream.root / "fakeup/core.py").read_text()
    upstream.write(core="import time\ntime.sleep(0.05)\n" + text)
    engine = engines(upstream.patch({"fakeup.core:scale": make}))
    if not late:
        engine.enable()
    barrier = threading.Barrier(12)

    def work(number: int) -> int:
        barrier.wait()
        if late and number % 3 == 0:
            engine.enable()
        core = importlib.import_module("fakeup.core")
        engine.enable()
        return int(core.scale(1))

    assert at_once(work, 12) == [200] * 12
    assert len(made) == 1
    engine.disable()
    assert importlib.import_module("fakeup.core").scale(1) == 2
    assert PROJECT.marker in sys.modules
