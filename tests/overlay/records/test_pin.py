"""The pin, on the fake upstream: what differs from a lock stops the import, and nothing gets past it."""

from __future__ import annotations

import contextlib
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_upstream import Engines, Upstream, untested

from overlay.errors import PatchError, PinError
from overlay.patch import Patch
from overlay.records import lock as _lock
from overlay.records import lock as lockfile
from overlay.runtime.engine import Engine


class Pinned:
    """Locks a patch, and pins engines to that."""

    def __init__(self, engines: Engines, path: Path, patch: pytest.MonkeyPatch) -> None:
        self._engines = engines
        self.path = path
        self._patch = patch
        self.digest = ""

    def lock(self, *patches: Patch) -> None:
        lock = self._engines(*patches).lock()
        self.path.write_text(lockfile.write(lock))
        self.digest = lock["digest"]

    def edit(self, *keys: str) -> None:
        """Say in the lock that something was of version 0.0.1."""
        lock = lockfile.read(str(self.path))
        table: dict[str, Any] = lock
        for key in keys[:-1]:
            table = table[key]
        table[keys[-1]] = "0.0.1"
        self.path.write_text(lockfile.write(_lock.with_digest(lock)))

    def enable(self, *patches: Patch, digest: bool = False) -> Engine:
        self._patch.setenv("OVERLAY_PIN", f"sha256:{self.digest}" if digest else str(self.path))
        engine = self._engines(*patches)
        engine.enable()
        return engine


@pytest.fixture
def pinned(upstream: Upstream, engines: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pinned:
    return Pinned(engines, tmp_path / "overlay.lock", monkeypatch)


def must_fail(upstream: Upstream) -> str:
    """Import the patched module as Megatron imports what it can do without, and return the error, twice."""
    messages = []

    def guarded() -> None:
        with contextlib.suppress(ImportError):
            upstream.load()
        pytest.fail("it was swallowed")

    for _ in range(2):
        with pytest.raises(PinError) as caught:
            guarded()
        assert "fakeup.core" not in sys.modules
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    return messages[0]


@pytest.mark.parametrize("digest", [False, True])
def test_what_is_locked_is_applied(upstream: Upstream, pinned: Pinned, digest: bool) -> None:
    pinned.lock(upstream.patch())
    engine = pinned.enable(upstream.patch(), digest=digest)
    assert upstream.load().scale(1) == 200
    assert engine.status().pinned


def test_another_version_stops_the_import(upstream: Upstream, pinned: Pinned) -> None:
    pinned.lock(upstream.patch())
    engine = pinned.enable(upstream.patch())
    upstream.version("1.2.1")
    assert "fakeup.scale: fakeup version: locked 1.2.0, here 1.2.1" in must_fail(upstream)
    assert engine.status().patches[0].state == "failed"


def test_another_source_stops_the_import_and_names_the_site(upstream: Upstream, pinned: Pinned) -> None:
    patch = upstream.patch()
    pinned.lock(patch)
    pinned.enable(patch)
    before = upstream.digest("fakeup.core:scale")
    upstream.write(core="def scale(value, factor=3):\n    return value * factor\n")
    now = upstream.digest("fakeup.core:scale")
    said = must_fail(upstream)
    assert f"fakeup source of fakeup.core:scale: locked {before}, here {now}" in said
    assert "fakeup.scale: verdict: locked apply, here unknown-source" in said


def test_a_module_that_has_moved_stops_the_import_of_another(upstream: Upstream, pinned: Pinned) -> None:
    """Of its own there is none that could be stopped."""
    upstream.write(late="def late():\n    return 1\n")
    patches = (
        upstream.patch(),
        upstream.patch({"fakeup.late:late": lambda original, _: original}, name="fakeup.late"),
    )
    pinned.lock(*patches)
    (upstream.root / "fakeup/late.py").unlink()
    pinned.enable(*patches)
    assert "fakeup.late is unknown-source: " in must_fail(upstream)


def test_another_source_stops_the_import_under_a_digest(upstream: Upstream, pinned: Pinned) -> None:
    pinned.lock(upstream.patch())
    pinned.enable(upstream.patch(), digest=True)
    upstream.version("1.2.1")
    assert f"digest: locked {pinned.digest[:12]}, here " in must_fail(upstream)


def test_a_module_that_is_there_already_is_held_to_the_lock(upstream: Upstream, pinned: Pinned) -> None:
    pinned.lock(upstream.patch())
    upstream.version("1.2.1")
    upstream.load()
    with pytest.raises(PinError):
        pinned.enable(upstream.patch())
    assert upstream.load().scale(1) == 2


def test_other_patches_stop_the_start(upstream: Upstream, pinned: Pinned) -> None:
    another = upstream.patch({"fakeup.core:Engine.run": lambda original, module: original}, name="fakeup.run")
    pinned.lock(upstream.patch())
    with pytest.raises(
        PinError, match=r"selected here and not locked: fakeup\.run\n  \(the selection differs"
    ):
        pinned.enable(upstream.patch(), another)
    with pytest.raises(
        PinError, match=r"locked and not selected here: fakeup\.scale\n  selected here and not"
    ):
        pinned.enable(another)


def test_the_way_out_knows_a_selection_that_enable_was_given(
    upstream: Upstream, pinned: Pinned, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    another = upstream.patch({"fakeup.core:Engine.run": lambda original, module: original}, name="fakeup.run")
    pinned.lock(upstream.patch())
    monkeypatch.setenv("OVERLAY_PIN", str(pinned.path))
    with pytest.raises(PinError) as caught:
        engines(upstream.patch(), another).enable("fakeup.scale,fakeup.run")
    assert 'overlay.enable("' in str(caught.value)
    assert f"overlay lock --file {pinned.path} --patches fakeup.scale,fakeup.run --update" in str(
        caught.value
    )


@pytest.mark.parametrize("keys", [("overlay", "version"), ("overlay", "content"), ("python",)])
def test_other_code_or_python_stops_the_start(
    upstream: Upstream, pinned: Pinned, keys: tuple[str, ...]
) -> None:
    pinned.lock(upstream.patch())
    pinned.edit(*keys)
    with pytest.raises(PinError, match=f"{' '.join(keys)}: locked 0.0.1, here "):
        pinned.enable(upstream.patch())


def test_another_torch_stops_the_import(upstream: Upstream, pinned: Pinned) -> None:
    pinned.lock(upstream.patch())
    pinned.edit("environment", "torch")
    pinned.enable(upstream.patch())
    assert "torch version: locked 0.0.1, here " in must_fail(upstream)


def test_what_was_locked_as_applied_must_apply(upstream: Upstream, pinned: Pinned) -> None:
    def broken(original: Any, module: Any) -> Any:
        raise ImportError("no")

    pinned.lock(upstream.patch())
    pinned.enable(upstream.patch({"fakeup.core:scale": broken}))
    assert "ImportError: no" in must_fail(upstream)


def test_a_held_original_is_an_error_under_a_pin(upstream: Upstream, pinned: Pinned) -> None:
    pinned.lock(upstream.patch())
    held = [upstream.load().scale]
    with pytest.raises(PinError, match="is still held by something"):
        pinned.enable(upstream.patch())
    assert held[0] is upstream.load().scale


def test_a_patch_that_was_locked_on_an_unknown_source_may_stay_so(upstream: Upstream, pinned: Pinned) -> None:
    patch = untested(upstream.patch())
    pinned.lock(patch)
    engine = pinned.enable(patch)
    assert upstream.load().scale(1) == 2
    assert engine.status().patches[0].state == "skipped"
    assert engine.status().patches[0].verdict is not None


def test_strict_mode_is_not_softened_by_a_pin(
    upstream: Upstream, pinned: Pinned, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch = untested(upstream.patch())
    pinned.lock(patch)
    monkeypatch.setenv("OVERLAY_STRICT", "1")
    pinned.enable(patch)
    with pytest.raises(PatchError, match="strict mode"):
        upstream.load()


def test_a_module_that_nobody_patches_is_not_looked_at(upstream: Upstream, pinned: Pinned) -> None:
    pinned.lock(upstream.patch())
    pinned.enable(upstream.patch())
    upstream.version("1.2.1")
    assert importlib.import_module("fakeup").__name__ == "fakeup"
