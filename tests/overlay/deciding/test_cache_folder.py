"""What is kept lies where nobody else can write, and is made by one process of a node."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from overlay.base import settings
from overlay.deciding import cache_folder
from overlay.deciding.cache import Witness, decide_all
from overlay.deciding.cache_folder import Folder, usual
from overlay.errors import OverlayError

if TYPE_CHECKING:
    from pathlib import Path

    from fake_upstream import Upstream


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The usual folder, where there is nothing yet."""
    monkeypatch.delenv("OVERLAY_CACHE", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path / f"overlay-decided-{os.geteuid()}"


def test_it_is_used_without_being_asked_for_and_private(upstream: Upstream, place: Path) -> None:
    assert usual() == str(place)
    decide_all([upstream.patch()], Witness())
    (kept,) = place.glob("*.json")
    assert [one.stat().st_mode & 0o077 for one in (place, kept)] == [0, 0]


@pytest.mark.parametrize("word", ["0", "off", "No", "false"])
def test_it_can_be_switched_off(
    upstream: Upstream, place: Path, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.setenv("OVERLAY_CACHE", word)
    assert settings.cache() is None
    decide_all([upstream.patch()], Witness())
    assert not place.exists()


@pytest.mark.parametrize("folder", ["gone/deeper", "relative", " "])
def test_where_it_would_lie_is_not_made(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """Whatever is temporary would go there from then on."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OVERLAY_CACHE", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path / folder) if "/" in folder else folder)
    before = sorted(tmp_path.iterdir())
    assert decide_all([upstream.patch()], Witness())["fakeup.scale"].verdict == "apply"
    assert sorted(tmp_path.iterdir()) == before


def _linked(place: Path) -> None:
    """A link, even to a folder of this user's own."""
    (place.parent / "else").mkdir(mode=0o700)
    place.symlink_to(place.parent / "else")


def _open_to_all(place: Path) -> None:
    place.mkdir()
    place.chmod(0o777)


def _a_file(place: Path) -> None:
    place.write_text("")


def _of_somebody_else(place: Path) -> None:
    place.mkdir(mode=0o700)
    try:
        os.chown(place, os.geteuid() + 4711, -1)
    except PermissionError:
        pytest.skip("only root can give a folder away")


@pytest.mark.parametrize("spoil", [_linked, _open_to_all, _a_file, _of_somebody_else])
def test_what_somebody_else_may_have_put_there_is_not_used_and_nothing_is_said(
    upstream: Upstream, place: Path, spoil: object, capfd: pytest.CaptureFixture[str]
) -> None:
    spoil(place)  # type: ignore[operator]
    found = decide_all([upstream.patch()], Witness())
    assert found["fakeup.scale"].verdict == "apply"
    assert capfd.readouterr().err == ""
    assert not [*place.parent.rglob("*.json")]


def test_a_file_that_is_a_link_or_a_pipe_is_not_read(place: Path) -> None:
    folder = Folder(str(place), private=True)
    (place.parent / "told").write_text("{}")
    (place / "a").symlink_to(place.parent / "told")
    os.mkfifo(place / "b", 0o600)
    for name in ("a", "b"):
        with pytest.raises((OSError, OverlayError)):
            folder.read(name)
    assert folder.read("c") is None


def test_what_is_put_in_the_place_of_the_folder_is_not_read(place: Path) -> None:
    folder = Folder(str(place), private=True)
    folder.write("a.json", "mine")
    place.rename(place.parent / "away")
    place.mkdir()
    (place / "a.json").write_text("theirs")
    assert folder.read("a.json") == "mine"
    folder.write("a.json", "mine too")
    assert (place / "a.json").read_text() == "theirs"


def test_what_is_old_is_thrown_away_and_nothing_else(place: Path) -> None:
    folder = Folder(str(place), private=True)
    for name in ("old.json", ".lock-old", ".draft-1", "theirs.txt"):
        (place / name).write_text("")
        os.utime(place / name, (0, 0))
    folder.write("new.json", "x")
    assert sorted(one.name for one in place.iterdir()) == ["new.json", "theirs.txt"]


def test_only_the_newest_are_kept(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_folder, "MOST", 3)
    folder = Folder(str(place), private=True)
    for number in range(5):
        folder.write(f"{number}.json", "x")
        os.utime(place / f"{number}.json", ns=(0, time.time_ns() - (9 - number) * 10**9))
    folder.write("last.json", "x")
    assert sorted(one.name for one in place.iterdir()) == ["3.json", "4.json", "last.json"]


def test_a_draft_that_cannot_be_written_leaves_nothing(place: Path) -> None:
    folder = Folder(str(place), private=True)
    with pytest.raises(UnicodeEncodeError):
        folder.write("a.json", "\ud800")
    assert [*place.iterdir()] == []


def test_one_works_and_the_others_wait_but_not_for_ever(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder(str(place), private=True)
    done: list[str] = []

    def other() -> None:
        with folder.alone("key"):
            done.append("other")

    with folder.alone("key"):
        thread = threading.Thread(target=other)
        thread.start()
        time.sleep(10 * cache_folder.PAUSE)
        done.append("first")
    thread.join()
    assert done == ["first", "other"]
    monkeypatch.setattr(cache_folder, "PATIENCE", 0.0)
    with folder.alone("key"):
        other()
    assert done[2:] == ["other"]


RANK = """
import ast, sys
from overlay.deciding import cache_folder
from overlay.deciding.cache import Witness, decide_all
from overlay.catalogue.registry import load_patches
parsed, plain = [], ast.parse
def parse(*arguments, **keywords):
    parsed.append(arguments)
    return plain(*arguments, **keywords)
ast.parse, cache_folder.PATIENCE = parse, 100.0
patches = list(load_patches().values())
sys.stdout.write("ready\\n"); sys.stdout.flush(); sys.stdin.readline()
decide_all(patches, Witness())
print(len(parsed))
"""


def test_sources_are_parsed_once_per_node(place: Path) -> None:
    """Three processes that come at once; what is installed here is what they decide on."""
    environ = {**os.environ, "TMPDIR": str(place.parent)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for rank in ranks:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "ready\n"
    for rank in ranks:
        assert rank.stdin is not None
        rank.stdin.write("\n")
        rank.stdin.flush()
    told = sorted(int(rank.communicate(timeout=100)[0]) for rank in ranks)
    assert told[:2] == [0, 0]
    assert told[2] > 0
