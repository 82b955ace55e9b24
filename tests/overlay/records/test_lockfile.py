"""The file of a lock: what is written is read, and nothing else is."""

from __future__ import annotations

import contextlib
import os
import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.errors import LockError
from overlay.records import lock as _lock
from overlay.records import lockfile

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = st.text(max_size=20)
TARGETS = st.fixed_dictionaries(
    {
        **dict.fromkeys(("project", "distribution", "version", "verdict", "variant", "source"), TEXTS),
        "sites": st.dictionaries(TEXTS, TEXTS, max_size=3),
    }
)
PATCHES = st.fixed_dictionaries(
    {
        "id": TEXTS, "revision": st.integers(0, 9), "content": TEXTS, "verdict": TEXTS,
        "target": st.lists(TARGETS, max_size=2),
    }
)  # fmt: skip
PACKS = st.fixed_dictionaries(dict.fromkeys(("name", "distribution", "version", "content"), TEXTS))
LOCKS = st.fixed_dictionaries(
    {
        "format": st.just(_lock.FORMAT),
        "overlay": st.fixed_dictionaries({"version": TEXTS, "content": TEXTS}),
        "python": TEXTS,
        "environment": st.dictionaries(TEXTS, TEXTS, max_size=2),
        "pack": st.lists(PACKS, max_size=2),
        "patch": st.lists(PATCHES, max_size=2, unique_by=lambda patch: patch["id"]),
    }
)


def example() -> dict[str, Any]:
    target = {"project": "verl", "distribution": "verl", "version": "0.8.0", "verdict": "apply"}
    target |= {"variant": "0.8", "source": "3" * 64}
    return _lock.with_digest(
        {
            "format": _lock.FORMAT,
            "overlay": {"version": "0.1.0", "content": "0" * 64},
            "python": "3.11.7",
            "environment": {"torch": "2.13.0+cpu"},
            "pack": [{"name": "acme", "distribution": "acme-overlay", "version": "4.5", "content": "1" * 64}],
            "patch": [
                {
                    "id": "verl.x", "revision": 1, "content": "2" * 64, "verdict": "apply",
                    "target": [{**target, "sites": {"verl.a:f": "abc"}}],
                }
            ],
        }
    )  # fmt: skip


@given(LOCKS)
@settings(max_examples=200, deadline=None)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, lock: dict[str, Any]) -> None:
    path = tmp_path_factory.getbasetemp() / "any.lock"
    locked = _lock.with_digest(lock)
    path.write_text(lockfile.write(locked), encoding="utf-8")
    assert lockfile.read(str(path)) == locked


def refusal(path: Path, text: str | bytes) -> str:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(LockError) as caught:
        lockfile.read(str(path))
    return str(caught.value)


def test_a_damaged_lock_is_never_believed(tmp_path: Path) -> None:
    seed = int(os.environ.get("OVERLAY_TEST_SEED") or random.randrange(2**32))
    print(f"OVERLAY_TEST_SEED={seed}")
    draw = random.Random(seed)
    path, whole = tmp_path / "x.lock", lockfile.write(example()).encode()
    comment = len(whole.splitlines(keepends=True)[0])
    for end in range(comment, len(whole) - 1, 7):
        assert "damaged" in refusal(path, whole[:end])
    for _ in range(300):
        place = draw.randrange(comment, len(whole))
        damaged = whole[:place] + bytes([draw.randrange(256)]) + whole[place + 1 :]
        path.write_bytes(damaged)
        with contextlib.suppress(LockError):
            assert lockfile.read(str(path)) == example()  # a blank for a blank, say


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "damaged"),
        ("format = 2\n", "was written by a newer overlay (format 2, this one reads 1): upgrade overlay"),
        ("format = 'x'\n", "damaged"),
        ("x = " + "[" * 100_000, "damaged"),
        ("x = {a={b={c={}}}}\n" * 2, "damaged"),
        (b"\xff\xfe", "damaged"),
        ("\x00", "damaged"),
        ("format = 1\npatch = 7\n", "damaged"),
        ("format = 1\npatch = [7]\n", "damaged"),
        ("format = 1\n[[patch]]\n[patch.target]\nx = 1\n", "damaged"),
        ("#" * (1 << 21), "more than 1048576 bytes"),
    ],
    ids=range(11),
)
def test_what_is_no_lock_is_refused(tmp_path: Path, text: str | bytes, words: str) -> None:
    assert words in refusal(tmp_path / "x.lock", text)


def test_what_a_newer_overlay_has_added_is_refused(tmp_path: Path) -> None:
    """It counts for the digest, as all that a lock says does."""
    newer = example()
    newer["digest"] = _lock.digest_of({**_lock.facts(newer), "kernel": "6.1"})
    assert "damaged" in refusal(tmp_path / "x.lock", lockfile.write({**newer, "kernel": "6.1"}))


def test_an_edited_lock_is_refused(tmp_path: Path) -> None:
    text = lockfile.write(example())
    assert "or was edited" in refusal(tmp_path / "x.lock", text.replace('"0.8.0"', '"0.8.1"'))
    assert "or was edited" in refusal(tmp_path / "x.lock", text.replace('"abc"', '"abd"'))


def test_two_entries_of_one_patch_are_refused(tmp_path: Path) -> None:
    lock = example()
    lock["patch"] *= 2
    assert "damaged" in refusal(tmp_path / "x.lock", lockfile.write(_lock.with_digest(lock)))


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, "/dev/zero", tmp_path / "nothing", "a\0b"):
        with pytest.raises(LockError, match=r"cannot be read"):
            lockfile.read(str(path))


def test_differences_name_the_site_and_not_the_sum_of_all() -> None:
    other = example()
    target = other["patch"][0]["target"][0]
    target |= {"sites": {"verl.a:f": "abd"}, "source": "4" * 64, "version": ""}
    del other["pack"][0]
    assert _lock.differences(_lock.facts(example()), _lock.facts(other)) == [
        f"pack acme: content: locked {'1' * 12}, here absent",
        "pack acme: distribution: locked acme-overlay, here absent",
        "pack acme: version: locked 4.5, here absent",
        "verl.x: verl source of verl.a:f: locked abc, here abd",
        "verl.x: verl version: locked 0.8.0, here none",
    ]
