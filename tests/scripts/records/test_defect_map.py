"""docs/defects.md is what the tables say, and they speak of each defect."""

from __future__ import annotations

from overlay.source.known_defects import load_defects
from overlay.source.registry import load_patches
from records import _support_print, defects


def test_the_page_is_what_the_tables_say() -> None:
    """`./scripts/matrix defects` writes it again."""
    assert defects.main(["--check"]) == 0


def test_each_defect_was_present_in_some_release() -> None:
    """One that no source has ever had says nothing: its sites are wrong."""
    found = defects.heat()
    here = {name for row in found.values() for name, state in row.items() if state in ("mended", "open")}
    assert here == set(load_defects(load_patches()))


def test_what_a_patch_mends_is_where_it_applies() -> None:
    found, patches = defects.heat(), load_patches()
    follow = [one for one in load_defects(patches).values() if defects.follows(one) and not one.only]
    ours = [one for one in follow if patches[one.patch].targets[0].project == one.project]
    assert ours
    for name, row in _support_print.recorded().items():
        for defect in ours:
            if defect.id in found[name] and row.get(defect.patch) == "apply":
                assert found[name][defect.id] == "mended"
