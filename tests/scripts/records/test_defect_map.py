"""docs/defects.md is what the records say, and the records are of the defects that there are."""

from __future__ import annotations

from overlay.catalogue.known_defects import load_defects
from overlay.catalogue.registry import load_patches
from records import defects, support


def test_the_page_is_what_the_records_say() -> None:
    """`./scripts/matrix defects` writes both again, and with `--page` the page alone."""
    assert defects.main(["--check"]) == 0


def test_the_record_has_each_release_and_each_defect_that_is_not_in_the_support_matrix() -> None:
    patches = load_patches()
    known = load_defects(patches)
    record = defects.recorded()
    assert list(record) == list(support.recorded())
    cells = {name for row in record.values() for name in row}
    assert cells == {name for name, defect in known.items() if not defects.follows(defect, patches)}
    assert {state for row in record.values() for state in row.values()} <= set(defects.SIGNS)


def test_each_defect_was_present_in_some_release() -> None:
    """One that no source has ever had says nothing: its digests are wrong."""
    found = defects.heat()
    here = {name for row in found.values() for name, state in row.items() if state in ("mended", "open")}
    assert here == set(load_defects(load_patches()))


def test_what_a_patch_mends_is_as_the_support_matrix_has_it() -> None:
    found, patches = defects.heat(), load_patches()
    for name, row in support.recorded().items():
        for defect in load_defects(patches).values():
            if defects.follows(defect, patches) and row.get(defect.patch, {}).get("verdict") == "apply":
                assert found[name][defect.id] == "mended"
