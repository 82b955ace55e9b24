"""The table beside the patches of a project decides: in a folder, in an archive, and damaged."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_upstream import Upstream, forget, write_files

from overlay.patch import Patch
from overlay.runtime.engine import Engine
from overlay.source import registry
from overlay.source.known_defects import as_patch, load_defects
from overlay.source.own_code import of_module
from overlay.source.registry import load_patches
from overlay.source.source import Tree
from overlay.source.table import TABLE_FILE, Row, files_digest

SITE = "fakeup.core:scale"


@pytest.fixture
def engines() -> Iterator[Callable[..., Engine]]:
    """Make engines that go by the table beside a patch, and disable them afterwards."""
    made: list[Engine] = []

    def make(patch: Patch) -> Engine:
        made.append(Engine(lambda: {patch.id: patch}))
        return made[-1]

    yield make
    for engine in made:
        engine.disable()


@pytest.fixture
def beside(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Patch]]:
    """Lay a table beside the patches of a project, and return the patch that it is of."""
    monkeypatch.setattr(registry, "_modules", {})
    monkeypatch.setattr(registry, "_rows", {})
    patch = upstream.patch()
    files = {"__init__.py": "", "fakeup/__init__.py": "", "fakeup/scale.py": ""}
    write_files(upstream.root / "packs/tabled", files)
    monkeypatch.syspath_prepend(str(upstream.root / "packs"))

    def lay(text: str | None) -> Patch:
        if text is not None:
            (upstream.root / f"packs/tabled/fakeup/{TABLE_FILE}").write_text(text)
        registry._modules[patch.id] = "tabled.fakeup.scale"
        return patch

    yield lay
    forget("tabled")


def table(patch: Patch, **changes: Any) -> str:
    tree = Tree()
    row = Row(
        patch=patch.id,
        target="fakeup",
        verdict="apply",
        variant=patch.targets[0].variants[0].name,
        sites={SITE: tree.digest(SITE)},
        code=of_module("tabled.fakeup.scale"),
        on={files_digest(patch.targets[0], tree): ["fakeup 1.2.0"]},
    )
    return json.dumps({"sources": {}, "rows": [row.replace(**changes).to_dict()]})


def test_a_known_source_is_patched_and_never_parsed(
    upstream: Upstream, beside: Callable[..., Patch], engines: Callable[..., Engine], parsed: list[str]
) -> None:
    patch = beside(table(upstream.patch()))
    parsed.clear()
    engine = engines(patch)
    assert engine.plan().verdicts[0].verdict == "apply"
    engine.enable(strict=True)
    assert upstream.load().scale(1) == 200
    assert not any(parsed)  # the empty file of the patch alone, to compare it with the row


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "the patch was not tested on any fakeup"),
        ("", f"{TABLE_FILE} is no table"),
        ('{"rows": [3]}', f"{TABLE_FILE} is no table"),
    ],
)
def test_without_a_table_or_with_a_damaged_one_nothing_is_known(
    beside: Callable[..., Patch], engines: Callable[..., Engine], text: str | None, words: str
) -> None:
    verdict = engines(beside(text)).plan().verdicts[0]
    assert verdict.verdict == "unknown-source"
    assert words in verdict.reason


def test_a_table_is_read_where_its_project_is_there(
    upstream: Upstream, beside: Callable[..., Patch], engines: Callable[..., Engine], tmp_path: Path
) -> None:
    patch = beside("")
    (tmp_path / "empty").mkdir()
    assert engines(patch).plan(site=str(tmp_path / "empty")).verdicts[0].verdict == "not-installed"
    assert registry._rows == {}
    assert "tabled" not in sys.modules


def test_a_newer_table_tells_of_defects_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their rows rest on somebody's reading, and on no code that could be another one by now."""
    ident = "megatron.mtp-per-token-scale"
    defect = as_patch(load_defects(load_patches())[ident])
    row = {"patch": ident, "target": "megatron-core", "verdict": "apply", "shown": "read"}
    newer = tmp_path / "newer.json"
    sites = dict.fromkeys(defect.targets[0].sites(), "0123456789ab")
    newer.write_text(json.dumps({"rows": [{**row, "sites": sites, "on": {"x": ["a later release"]}}]}))
    before = len(registry.tables().rows(defect, defect.targets[0]))
    monkeypatch.setenv("OVERLAY_TRUST", str(newer))
    assert len(registry.tables().rows(defect, defect.targets[0])) == before + 1
