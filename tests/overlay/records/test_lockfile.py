"""The file of a lock: what is written is read, and nothing else is."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from overlay.cli import main
from overlay.errors import LockError
from overlay.records import lock as _lock
from overlay.source.registry import load_patches
from overlay.source.selection import choose

FORMAT = f'"format": {_lock.FORMAT}'


def example() -> dict[str, Any]:
    target = {"project": "verl", "version": "0.8.0", "verdict": "apply", "variant": "0.8", "trusted": "no"}
    return _lock.with_digest(
        {
            "format": _lock.FORMAT,
            "overlay": {"version": "0.1.0", "content": "0" * 64},
            "python": "3.11.7",
            "environment": {"torch": "2.13.0+cpu"},
            "pack": [{"name": "acme", "distribution": "acme-overlay", "version": "4.5", "content": "1" * 64}],
            "patch": [
                {
                    "id": "verl.x",
                    "verdict": "apply",
                    "target": [{**target, "sites": {"verl.a:f": "abc"}}],
                }
            ],
        }
    )


def refusal(path: Path, text: str | bytes) -> str:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(LockError) as caught:
        _lock.read(str(path))
    return str(caught.value)


def test_what_is_written_is_read_and_damage_never_believed(tmp_path: Path) -> None:
    seed = int(os.environ.get("OVERLAY_TEST_SEED") or random.randrange(2**32))
    print(f"OVERLAY_TEST_SEED={seed}")
    draw = random.Random(seed)
    path, whole = tmp_path / "x.lock", _lock.write(example()).encode()
    path.write_bytes(whole)
    assert _lock.read(str(path)) == example()
    for end in range(0, len(whole) - 2, 7):
        assert "damaged" in refusal(path, whole[:end])
    for _ in range(300):
        place = draw.randrange(len(whole))
        path.write_bytes(whole[:place] + bytes([draw.randrange(256)]) + whole[place + 1 :])
        with contextlib.suppress(LockError):
            assert _lock.read(str(path)) == example()  # a blank for a blank, say


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "damaged"),
        (
            '{"format": 1}',
            "was written by another overlay (format 1, this one reads 2); write it with",
        ),
        ('{"format": "x"}', "was written by another overlay"),
        ('{"format": "\\u001b[31m"}', r"overlay (format '\x1b[31m', this"),
        ('format = 1\npython = "3.11.7"\n', "or of another overlay: JSONDecodeError"),
        ("{", "name another file, which `OVERLAY_PIN= overlay lock --file OTHER` writes"),
        ("[" * 100_000, "damaged"),
        ("[]", "damaged"),
        (b"\xff\xfe", "damaged"),
        ("\x00", "damaged"),
        (f'{{{FORMAT}, "digest": "", "patch": 7}}', "damaged"),
        (f'{{{FORMAT}, "digest": "", "patch": [7]}}', "damaged"),
        ("#" * (1 << 21), "more than 1048576 bytes"),
    ],
    ids=range(13),
)
def test_what_is_no_lock_is_refused(tmp_path: Path, text: str | bytes, words: str) -> None:
    assert words in refusal(tmp_path / "x.lock", text)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lock: lock["patch"][0].update(id=3), "wrong type"),
        (lambda lock: lock["patch"][0].update(verdict="\x1b[31m"), "wrong type"),
        (lambda lock: lock["patch"][0]["target"][0]["sites"].update({"\ud800": "abc"}), "wrong type"),
        (lambda lock: lock.update(kernel=["6.1"]), "wrong type"),
        (lambda lock: lock.pop("python"), "KeyError: 'python'"),
        (lambda lock: lock["patch"][0].pop("id"), "KeyError: 'id'"),
        (lambda lock: lock["patch"][0].pop("verdict"), "wrong type"),
        (lambda lock: lock["patch"][0].update(verdict=[]), "wrong type"),
        (lambda lock: lock["patch"][0].update(id={}), "wrong type"),
    ],
    ids=range(9),
)
def test_what_has_the_right_digest_must_be_a_lock(tmp_path: Path, change: Any, words: str) -> None:
    lock = example()
    change(lock)
    assert words in refusal(tmp_path / "x.lock", _lock.write(_lock.with_digest(lock)))


def test_a_file_beside_a_lock_stays(tmp_path: Path) -> None:
    neighbour, path = tmp_path / "x.lock.new", tmp_path / "x.lock"
    neighbour.write_text("mine")
    _lock.save(str(path), example())
    _lock.save(str(path), example())
    assert neighbour.read_text() == "mine"
    assert sorted(tmp_path.iterdir()) == [path, neighbour]


@pytest.mark.parametrize("call", ["write", "replace", "chmod"])
def test_on_a_full_disk_the_old_lock_stays_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], call: str
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "x.lock"
    _lock.save(str(path), example())
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(_lock if call == "write" else os, call, full)
        assert main(["lock", "--update", "--patches", "megatron.recompute", "--file", str(path)]) == 2
    assert "the lock cannot be written: [Errno 28] No space left on device" in capsys.readouterr().err
    assert path.read_bytes() == before
    assert [*tmp_path.iterdir()] == [path]


def test_what_is_no_file_is_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    _lock.save(str(tmp_path / "pipe"), example())
    # Before a device is tried: one of the machine's own would be replaced as well.
    assert os.read(reader, 1 << 16).decode() == _lock.write(example())
    os.close(reader)
    with pytest.raises(OSError, match="Errno 28"):
        _lock.save("/dev/full", example())


def test_a_link_stays_a_link_and_the_mode_what_it_was(tmp_path: Path) -> None:
    path, link = tmp_path / "x.lock", tmp_path / "link.lock"
    path.write_text("damaged")
    path.chmod(0o640)
    link.symlink_to(path.name)
    _lock.save(str(link), example())
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    assert _lock.read(str(path)) == example()


def test_update_does_not_replace_what_was_never_a_lock(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.lock"
    notes = (
        "my notes",
        '{"a": 1}',
        '{"name": "mine", "log_format": "json"}',
        '{"format": 2, "name": 1}',
        "# format",
    )
    locks = ('{\n "format": 2,\n "over', "# Written by `overlay lock`, held by OVERLAY_PIN.", "")
    for text, code in (*((one, 2) for one in notes), *((one, 0) for one in locks)):
        path.write_text(text)
        assert main(["lock", "--update", "--patches", "none", "--file", str(path)]) == code, text
        assert (path.read_text() == text) is (code == 2)
        assert ("is no lock" in capsys.readouterr().err) is (code == 2)


def test_an_edited_lock_is_refused(tmp_path: Path) -> None:
    for change in ({"python": "3.11.8"}, {"kernel": "6.1"}):
        assert "or was edited" in refusal(tmp_path / "x.lock", json.dumps({**example(), **change}))


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, "/dev/zero", "a\0b"):
        with pytest.raises(LockError, match=r"cannot be read"):
            _lock.read(str(path))
    missing = str(tmp_path / "nothing")
    with pytest.raises(
        LockError, match=f"no lock {missing}: `OVERLAY_PIN= overlay lock --file {missing}` writes one"
    ):
        _lock.read(missing)


def test_the_command_that_writes_a_lock_can_be_pasted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERLAY_TRUST", "/my table")
    monkeypatch.delenv("OVERLAY_PACKS", raising=False)
    command = "`OVERLAY_PIN= OVERLAY_TRUST='/my table' overlay lock --patches 'verl.*' --update`"
    assert _lock.writer(_lock.LOCK_FILE, "--update", terms=["verl.*"]) == command
    assert _lock.writer("sha256:" + "0" * 64, "--update", terms=["verl.*"]) == (
        f"{command}, and set OVERLAY_PIN to the digest that it prints"
    )


def test_what_differs_is_named_and_patches_of_one_side_share_a_line() -> None:
    one, other = example(), example()
    other["patch"][0]["target"][0] |= {"sites": {"verl.a:f": "abd"}, "version": ""}
    del other["pack"][0]
    one["patch"] += [{**one["patch"][0], "id": name} for name in ("slime.a", "slime.b")]
    other["patch"].append({**other["patch"][0], "id": "acme/z"})
    assert _lock.compare(_lock.facts(one), _lock.facts(other)) == [
        "locked and not selected here: slime.a, slime.b",
        "selected here and not locked: acme/z",
        f"pack acme: content: locked {'1' * 12}, here absent",
        "pack acme: distribution: locked acme-overlay, here absent",
        "pack acme: version: locked 4.5, here absent",
        "verl.x: verl source of verl.a:f: locked abc, here abd",
        "verl.x: verl version: locked 0.8.0, here none",
    ]


def test_a_selection_is_named_in_the_fewest_words() -> None:
    known = load_patches()
    default = [name for name, patch in known.items() if not patch.opt_in]
    (more, *_) = sorted(name for name, patch in known.items() if patch.opt_in)
    for terms in (["all"], ["all", more], ["all", "-megatron.grad-norm"], ["megatron.grad-norm"], ["none"]):
        ids = choose(known, terms).ids
        lock = {**example(), "pack": [], "patch": [{"id": name} for name in ids]}
        assert _lock.selection_of(lock, known).split(",") == terms
    lock = {**example(), "patch": [{"id": name} for name in default]}  # `all` is more than that, with a pack
    assert choose(known, _lock.selection_of(lock, known)).ids == choose(known, "all").ids
    assert "all" not in _lock.selection_of(lock, known).split(",")
