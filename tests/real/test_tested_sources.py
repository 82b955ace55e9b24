"""The tables are whole: each row decides on each of its sources as it says, and is of the code that is here.

Where it fails, `./scripts/matrix tested ID --write` runs what is missing and writes it.
"""

from __future__ import annotations

import pytest
from listed_sources import Listed

from overlay.source.decide import decide
from overlay.source.registry import load_patches, of_code
from overlay.source.source import Tree
from overlay.source.table import Table
from records import _support_print, tested
from sources import releases

pytestmark = pytest.mark.real

ROWS = _support_print.rows()
NAMES = [release.name for release in releases.read()]
#: Images that stand by day for the projects that they have.
BY_DAY = ("verl image 0.8.0", "slime image v0.3.1")


def test_each_row_is_of_a_patch_and_of_its_code() -> None:
    known, patches = tested.everything(), load_patches()
    assert {row.patch for row in ROWS} == known.keys()
    stale = {row.patch for row in ROWS if row.patch in patches and row.code != of_code(row.patch)}
    assert not stale, f"./scripts/matrix tested {' '.join(sorted(stale))} --write"


def test_each_source_is_of_the_list_and_each_line_of_the_list_is_a_source() -> None:
    assert {name for row in ROWS for name in row.sources()} == {*NAMES}


@pytest.mark.nightly("two images stand for it", name=tuple(name for name in NAMES if name not in BY_DAY))
@pytest.mark.parametrize("name", NAMES)
def test_each_row_of_a_source_decides_there_and_nothing_is_parsed(listed: Listed, name: str) -> None:
    folder = str(listed(name))
    fast, slow, table = Tree(folder), Tree(folder), Table(ROWS)
    known = tested.everything()
    ours = [row for row in ROWS if name in row.sources()]
    assert ours
    for row in ours:
        target = next(one for one in known[row.patch].targets if one.project.name == row.target)
        if target.serves:  # what is decided on that one decides before its own row does
            continue
        found = table.find(known[row.patch], target, fast)
        assert found is not None, row.patch
        assert (found.means, name in found.sources()) == (row.means, True), row.patch
        if not row.loud and any(row.sites.values()):
            by_sites = table.by_sites(known[row.patch], target, slow)
            # Where nothing that a patch replaces is there, or a module may have it from elsewhere, what is
            # there need not tell, and the files decide.
            nulls = [site for site, said in row.sites.items() if said is None]
            unclear = any(isinstance(slow.presence(site), str) for site in nulls)
            replaced = target.replaced()
            gone = bool(replaced) and not any(row.sites.get(site) for site in replaced)
            assert by_sites is not None or gone or unclear, row.patch
            assert by_sites is None or by_sites.means == row.means, row.patch
    origins = {site.partition(":")[0] for row in ours for site in row.imported.values() if site in row.sites}
    assert {module for module in fast._modules if fast._text(module)} <= origins
    found_here = {patch: decide(one, fast, table).verdict for patch, one in load_patches().items()}
    there = {patch: said for patch, said in found_here.items() if said != "not-installed"}
    assert there == _support_print.recorded()[name]
