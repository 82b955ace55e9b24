"""What was decided is remembered for the very same source, and for nothing else."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from overlay.catalogue.registry import load_patches
from overlay.deciding.cache import Witness, _own_files, decide_all
from overlay.deciding.cache_folder import Folder
from overlay.enabling.loading import know_sources
from overlay.patch import Present

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_upstream import Upstream

    from overlay.enabling.engine import Engine
    from overlay.patch import Patch
    from overlay.verdict import Verdict


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    know_sources()  # as an engine does: the table is part of what the kept file is named by
    place = tmp_path / "kept" / "here"
    monkeypatch.setenv("OVERLAY_CACHE", str(place))
    return place


def decided(*patches: Patch) -> dict[str, Verdict]:
    return decide_all(patches, Witness())


def test_the_second_process_reads_and_does_not_parse(
    upstream: Upstream, folder: Path, parsed: list[str], engines: Callable[..., Engine]
) -> None:
    patch = upstream.patch()
    first = decided(patch)
    assert first["fakeup.scale"].verdict == "apply"
    (kept,) = folder.glob("*.json")
    assert [one.stat().st_mode & 0o077 for one in (folder, kept)] == [0, 0]
    assert set(json.loads(kept.read_text())) == {"answers", "prints", "verdicts"}
    before, tree = kept.stat().st_mtime_ns, Witness()
    parsed.clear()
    assert decide_all([patch], tree) == first
    assert set(tree.prints) == {"fakeup.core:scale"}
    assert kept.stat().st_mtime_ns == before
    assert engines(patch).enable(strict=True).patches[0].state == "armed"
    assert upstream.load().scale(1) == 200
    assert parsed == []


def test_code_that_is_not_that_of_the_source_is_refused_all_the_same(
    upstream: Upstream, folder: Path, engines: Callable[..., Engine]
) -> None:
    patch = upstream.patch()
    decided(patch)
    assert folder.is_dir()
    upstream.load().scale.__code__ = (lambda value, factor=2: value).__code__
    assert engines(patch).enable().patches[0].verdict.verdict == "conflict"  # type: ignore[union-attr]


CHANGES: dict[str, Callable[[Any], object]] = {
    "a source": lambda upstream: upstream.write(core="def scale(value, factor=2):\n    return 0\n"),
    "a comment in a source": lambda upstream: (upstream.root / "fakeup/core.py").write_text(
        (upstream.root / "fakeup/core.py").read_text() + "# more\n"
    ),
    "a version": lambda upstream: upstream.version("1.3.0\n"),
    "no project": lambda upstream: (upstream.root / "fakeup/core.py").unlink(),
    "no source": lambda upstream: (upstream.root / "fakeup/core.py").write_bytes(b"# coding: none such\n"),
    "a module in its place": lambda upstream: (
        (upstream.root / "fakeup/core.py").unlink(),
        (upstream.root / "fakeup/core").mkdir(),
        (upstream.root / "fakeup/core/__init__.py").write_text(""),
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_answer_is_decided_anew(upstream: Upstream, folder: Path, change: str) -> None:
    patch = upstream.patch()
    decided(patch)
    assert folder.is_dir()
    CHANGES[change](upstream)
    found = decided(patch)
    os.environ["OVERLAY_CACHE"] = "0"
    assert found == decided(patch)


def test_another_patch_has_another_memory(upstream: Upstream, folder: Path) -> None:
    patch = upstream.patch()
    decided(patch)
    none = patch.replace(targets=(patch.targets[0].replace(variants=()),))
    for other in (patch.replace(revision=4), none, upstream.patch(versions=">=5")):
        before = len(list(folder.glob("*.json")))
        assert decided(other)["fakeup.scale"].revision == other.revision
        assert len(list(folder.glob("*.json"))) == before + 1
    assert decided(none)["fakeup.scale"].verdict == "unsupported"


@pytest.mark.parametrize("which", ["folder", "file"])
def test_what_others_may_write_to_is_not_used(
    upstream: Upstream, folder: Path, capfd: pytest.CaptureFixture[str], which: str
) -> None:
    patch = upstream.patch()
    decided(patch)
    (kept,) = folder.glob("*.json")
    kept.write_text(kept.read_text().replace('"apply"', '"not-affected"'))
    (folder if which == "folder" else kept).chmod(0o777)
    assert decided(patch)["fakeup.scale"].verdict == "apply"
    assert '"apply"' not in kept.read_text()
    assert "others may write to" in capfd.readouterr().err


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"answers": 3}', '{"answers": {"odd x": "1"}}', "\0"])
def test_garbage_is_no_verdict_and_is_made_anew(
    upstream: Upstream, folder: Path, text: str, parsed: list[str]
) -> None:
    patch = upstream.patch()
    decided(patch)
    (kept,) = folder.glob("*.json")
    right = json.loads(kept.read_text())
    kept.write_text(text)
    assert decided(patch)["fakeup.scale"].verdict == "apply"
    assert json.loads(kept.read_text()) == right
    parsed.clear()
    decided(patch)
    assert parsed == []


def test_a_source_that_is_edited_while_it_is_decided_on_is_not_taken_for_the_new_one(
    upstream: Upstream, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = upstream.root / "fakeup/core.py"
    plain = ast.parse

    def parse(text: str) -> Any:
        core.write_text("def scale(value, factor=2):\n    return 0\n")
        return plain(text)

    # In this order too, where a module is asked for after its names.
    patch = upstream.patch()
    (target,), there = patch.targets, Present(site="fakeup.core")
    (variant,) = target.variants
    wider = variant.replace(shape=(*variant.shape, there))
    patch = patch.replace(targets=(target.replace(variants=(wider,)),))
    with monkeypatch.context() as during:
        during.setattr(ast, "parse", parse)
        assert decided(patch)["fakeup.scale"].verdict == "apply"
    found = decided(patch)
    assert found["fakeup.scale"].verdict == "unsupported"
    os.environ["OVERLAY_CACHE"] = "0"
    assert found == decided(patch)


def test_what_had_two_answers_is_not_kept(upstream: Upstream, folder: Path) -> None:
    tree = Witness()
    (upstream.root / "fakeup/more.txt").write_text("one")
    tree.read("fakeup/more.txt")
    (upstream.root / "fakeup/more.txt").write_text("two")
    tree.read("fakeup/more.txt")
    assert tree.torn
    assert decide_all([upstream.patch()], tree)["fakeup.scale"].verdict == "apply"
    assert list(folder.glob("*.json")) == []


def test_all_code_that_decides_is_in_the_name() -> None:
    """What tells slime's version asks another module for its releases."""
    files = {Path(path).name for path in _own_files(load_patches().values())}
    assert {"decide.py", "source.py", "projects.py", "slime_releases.py", "patch.py"} <= files


def test_what_cannot_be_written_is_a_warning(
    upstream: Upstream, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(_folder: Folder, _name: str, _text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Folder, "write", full)
    assert decided(upstream.patch())["fakeup.scale"].verdict == "apply"
    assert "No space left" in capfd.readouterr().err
    assert list(folder.glob("*.json")) == []
