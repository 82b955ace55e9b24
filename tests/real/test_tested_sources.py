"""The table decides as the shapes do, on every source of the list, and parses nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from overlay.catalogue.registry import load_patches
from overlay.deciding.decide import decide, decide_target, settle
from overlay.deciding.table import NAME, Table, read
from overlay.reading.source import InstalledTree
from overlay.verdict import LOUD
from records import tested
from sources import releases

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.real

NAMES = [release.name for release in releases.read()]
#: Images that stand by day for the projects that they have.
BY_DAY = ("verl image 0.8.0", "slime image v0.3.1")


@pytest.fixture(scope="module")
def table() -> Table:
    return read(map(str, sorted(tested.PATCHES.glob(f"*/{NAME}"))))


@pytest.mark.nightly("two images stand for it", name=tuple(name for name in NAMES if name not in BY_DAY))
@pytest.mark.parametrize("name", NAMES)
def test_the_table_and_the_shapes_decide_alike(
    table: Table, listed: Callable[[str], Path], name: str
) -> None:
    folder = str(listed(name))
    patches = [*load_patches().values()]
    fast, slow = InstalledTree(folder), InstalledTree(folder)
    alone = {patch.id: decide(patch, fast, table=table) for patch in patches}
    assert [module for module in fast._parsed if fast._text(module)] == []
    before = {patch.id: decide(patch, slow) for patch in patches}
    cells = 0
    for patch in patches:
        new, old = alone[patch.id], before[patch.id]
        assert new.verdict == old.verdict, patch.id
        assert new.where() == old.where()
        assert [(one.verdict, one.variant) for one in new.targets] == [
            (one.verdict, one.variant) for one in old.targets
        ], patch.id
        for target in patch.targets:
            # Also where the project that it serves needs nothing, and each by its sites alone.
            old_word = decide_target(patch, target, slow)
            if old_word.verdict == "not-installed":
                continue
            cells += 1
            row = table.find(patch, target, fast)
            assert row is not None, (patch.id, target.project.name)
            assert name in tested._sources(row), patch.id
            assert (row.verdict, row.variant) == (old_word.verdict, old_word.variant), patch.id
            found = table.by_sites(patch, target, slow)
            if row.verdict not in LOUD and any(row.sites.values()):
                assert found is not None, patch.id
                assert found.means == row.means, patch.id
    assert cells
    settled, was = settle(patches, alone, fast), settle(patches, before, slow)
    assert {key: one.verdict for key, one in settled.items()} == {
        key: one.verdict for key, one in was.items()
    }
    assert fast._compiled == {}
