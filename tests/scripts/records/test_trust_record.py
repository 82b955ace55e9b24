"""What `overlay prove --trust` reads of each patch: measured of patches that there are, and on the page."""

from __future__ import annotations

from pathlib import Path

from overlay.catalogue.registry import load_patches
from overlay.deciding.decide import decide, variant_of
from overlay.proving import strength
from overlay.reading.source import InstalledTree
from records import trust

PAGE = Path(__file__).resolve().parents[3] / "docs/prove.md"


def test_the_record_is_of_patches_and_on_the_page() -> None:
    record, page, rows = strength.record(), PAGE.read_text(), trust.table().splitlines()
    assert record.keys() <= load_patches().keys()
    measured = [name for name, entry in record.items() if strength.strength(entry) is not None]
    assert measured
    for name in measured:
        (row,) = (row for row in rows if row.startswith(f"{name} "))
        assert row in page, "./scripts/matrix figures docs/prove.md prints it again"
    assert f"more than a {round(1 / strength.LARGEST_SHARE)}th".replace("10th", "tenth") in page
    assert f"fewer than {strength.FEWEST} were tried" in page


def test_what_is_installed_takes_and_reads_what_is_on_record() -> None:
    tree, record, seen = InstalledTree(), strength.record(), 0
    for name, patch in load_patches().items():
        for target in decide(patch, tree).targets:
            variant = variant_of(patch, target)
            if variant is not None and name in record:
                assert strength.other(record[name], variant.replacements, tree) == ""
                seen += len(variant.replacements)
    assert seen
