"""The lock and the pin as a job meets them: commands, and processes that must not go on."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from worksite import ARMED, PATCHED, PROBE, Venv

#: Imports as Megatron imports what it can do without.
GUARDED = "try:\n import fakeup.core\nexcept ImportError:\n print('swallowed')\nprint('went on')"
UNARMED = {**ARMED, "OVERLAY": "0"}
PACK = "acme_overlay/patches/fakeup/scale.py"


class Job:
    """A worksite with a lock."""

    def __init__(self, venv: Venv, folder: Path) -> None:
        self.venv = venv
        self.file = folder / "overlay.lock"
        self.settings = {**ARMED, "OVERLAY_PIN": str(self.file)}
        self.digest = self.lock()["digest"]

    def lock(self) -> dict[str, object]:
        made: dict[str, object] = self.venv.read("lock", "--file", str(self.file), **UNARMED)
        return made


@pytest.fixture
def job(worksite: Venv, tmp_path: Path) -> Iterator[Job]:
    """Return a worksite with a lock, and put back what is written into it."""
    backup = tmp_path / "backup"
    names = ("fakeup", "acme_overlay")
    for name in names:
        shutil.copytree(worksite.site / name, backup / name, ignore=shutil.ignore_patterns("__pycache__"))
    yield Job(worksite, tmp_path)
    for name in names:
        shutil.rmtree(worksite.site / name)
        shutil.copytree(backup / name, worksite.site / name)


def test_a_pinned_process_is_patched(job: Job) -> None:
    for pin in (str(job.file), f"sha256:{job.digest}"):
        done = job.venv.run("-c", PROBE, **{**job.settings, "OVERLAY_PIN": pin})
        assert done.stdout.split() == [PATCHED], done.stderr


def test_another_target_stops_the_process_at_its_import(job: Job) -> None:
    (job.venv.site / "fakeup/version.txt").write_text("1.3.0\n")
    assert job.venv.run("-c", "print('went on')", **job.settings).stdout == "went on\n"
    assert "went on" in job.venv.run("-c", GUARDED, **ARMED).stdout
    done = job.venv.run("-c", GUARDED, **job.settings)
    assert (done.returncode, done.stdout) == (1, "")
    assert "PinError" in done.stderr
    assert "fakeup version: locked 1.2.0, here 1.3.0" in done.stderr


@pytest.mark.parametrize("text", [None, '{"x'])
def test_a_lock_that_is_none_stops_the_process(job: Job, text: str | None) -> None:
    job.file.unlink()
    if text is not None:
        job.file.write_text(text)
    done = job.venv.run("-c", "print('went on')", **job.settings)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("overlay: this process is stopped: ")
    assert done.stderr.count("\n") <= 2
    assert job.venv.run("-m", "overlay", "lock", "--check", "--file", str(job.file)).returncode == 2


def test_a_lock_can_be_written_where_one_is_violated(job: Job) -> None:
    with (job.venv.site / PACK).open("a") as file:
        file.write("\n# changed\n")
    command = ["-m", "overlay", "lock", "--file", str(job.file)]
    assert job.venv.run(*command, **job.settings).returncode == 1
    # What is said to be the way out is one.
    said = job.venv.run("-c", "", **job.settings).stderr
    way_out = re.search("`OVERLAY_PIN= OVERLAY_PACKS=acme overlay (lock .* --update)`", said)
    assert way_out
    found = job.venv.run("-m", "overlay", *shlex.split(way_out[1]), **UNARMED)
    assert found.returncode == 0, found.stderr
    assert job.venv.run("-c", PROBE, **job.settings).stdout.split() == [PATCHED]


def test_a_lock_that_cannot_be_written_is_exit_code_2(worksite: Venv) -> None:
    done = worksite.run("-m", "overlay", "lock", "--file", "/nowhere/overlay.lock")
    assert done.returncode == 2
    assert "cannot be written" in done.stderr


def test_a_lock_that_is_there_is_not_written_over_unasked(job: Job) -> None:
    words = ["lock", "--file", str(job.file)]
    before = job.file.read_text()
    assert not job.venv.read(*words, **UNARMED)["written"]  # it is what is here
    (job.venv.site / "fakeup/version.txt").write_text("1.3.0\n")
    found = job.venv.read_failing(*words, "--check", **UNARMED)
    assert found["differences"] == ["acme/fakeup.scale: fakeup version: locked 1.2.0, here 1.3.0"]
    found = job.venv.read_failing(*words, **UNARMED)
    assert found["differences"] == ["acme/fakeup.scale: fakeup version: locked 1.2.0, here 1.3.0"]
    assert not found["written"]
    assert job.file.read_text() == before
    done = job.venv.run("-m", "overlay", *words, **UNARMED)
    assert done.returncode == 1
    assert "  acme/fakeup.scale: fakeup version: locked 1.2.0, here 1.3.0\n" in done.stdout
    assert "nothing was written: --update overwrites it" in done.stderr
    found = job.venv.read(*words, "--update", **UNARMED)
    assert found["written"]
    assert found["changed"] == ["acme/fakeup.scale: fakeup version: was 1.2.0, is 1.3.0"]
    assert found["differences"] == []
    assert job.venv.read(*words, "--check", **UNARMED)["differences"] == []


def test_a_damaged_lock_is_written_over_when_that_is_asked_for(job: Job) -> None:
    job.file.write_text(damaged := '{\n  "format": 2,\n  "overlay": {')
    words = ["-m", "overlay", "lock", "--file", str(job.file)]
    done = job.venv.run(*words, **UNARMED)
    assert done.returncode == 2
    assert "is damaged" in done.stderr
    assert "--update overwrites it" in done.stderr
    assert job.file.read_text() == damaged
    assert job.venv.run(*words, "--update", **UNARMED).returncode == 0
    assert job.venv.run("-c", PROBE, **job.settings).stdout.split() == [PATCHED]
