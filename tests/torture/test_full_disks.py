"""A lock on a disk that is full: the old lock stays, whole, or the new one is there."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from overlay.cli import main
from overlay.records import lock as lockfile

LOCK = ["lock", "--update", "--patches", "megatron.recompute", "--file"]


@pytest.fixture
def locked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Return a lock that is there already, of another selection."""
    path = tmp_path / "overlay.lock"
    main(["lock", "--patches", "megatron.agreement", "--file", str(path)])
    capsys.readouterr()
    return path


def judge(path: Path, before: bytes) -> None:
    assert path.read_bytes() == before
    assert lockfile.read(str(path))
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("call", ["write", "replace", "chmod"])
def test_no_space_left_at_each_call(
    locked: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], call: str
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = locked.read_bytes()
    with monkeypatch.context() as patch:
        if call == "write":
            patch.setattr(lockfile, "write", full)
        else:
            patch.setattr(os, call, full)
        assert main([*LOCK, str(locked)]) == 2
    assert "the lock cannot be written: [Errno 28] No space left on device" in capsys.readouterr().err
    judge(locked, before)


def test_what_is_no_file_is_written_to(locked: Path) -> None:
    lock = lockfile.read(str(locked))
    lockfile.save(os.devnull, lock)
    assert Path(os.devnull).is_char_device()
    with pytest.raises(OSError, match="Errno 28"):
        lockfile.save("/dev/full", lock)


def test_a_link_stays_a_link_and_the_mode_what_it_was(locked: Path) -> None:
    lock = lockfile.read(str(locked))
    link = locked.with_name("link.lock")
    link.symlink_to(locked.name)
    locked.chmod(0o640)
    locked.write_text("damaged")
    lockfile.save(str(link), lock)
    assert link.is_symlink()
    assert locked.stat().st_mode & 0o777 == 0o640
    assert lockfile.read(str(locked)) == lock
