"""What is written of what patches were tested on: what is put together, told, and refused."""

from __future__ import annotations

from overlay.catalogue.registry import load_patches
from overlay.deciding.table import NAME, Row, named
from records import tested
from sources import releases

SITE = "a:f"
ROW = Row(
    patch="megatron.grad-norm", target="megatron-core", verdict="apply", variant="1",
    sites={SITE: "1"}, on={"x": ["two"]}, date="2026-02-01",
)  # fmt: skip


def test_the_tables_are_of_the_patches_as_they_are() -> None:
    """Each patch has rows, and each row that is quiet is of a variant and has what that replaces."""
    abouts = {
        (one.id, target.project.name): target for one in load_patches().values() for target in one.targets
    }
    seen = set()
    for project in {name.partition(".")[0] for name in load_patches()}:
        sources, rows = tested.read(tested.file_of(project))
        assert {name for row in rows for name in tested._sources(row)} == {*sources}
        for row in rows:
            about = (row.patch, row.target)
            seen.add(about)
            assert row.serves(abouts[about]), f"./scripts/matrix tested {row.patch} --write"
            assert row.contract == tested.contract_digest(row.patch), f"./scripts/matrix tested {row.patch}"
            assert set(row.sites) <= set(named(abouts[about]))
    assert seen == {*abouts}


def test_every_source_of_the_list_is_in_a_table() -> None:
    sources = {name for path in tested.PATCHES.glob(f"*/{NAME}") for name in tested.read(path)[0]}
    assert sources == {release.name for release in releases.read()}


def test_rows_that_differ_in_their_sources_alone_are_one() -> None:
    order = ["one", "two", "three"]
    rows = [ROW, ROW.replace(on={"x": ["one"]}, date="2026-01-01"), ROW.replace(on={"y": ["three"]})]
    (found,) = tested.together(rows, order)
    assert found.on == {"x": ["one", "two"], "y": ["three"]}
    assert found.date == "2026-01-01"
    other = ROW.replace(evidence="another")
    assert len(tested.together([ROW, other], order)) == 2


def test_what_differs_is_a_line_for_each_source() -> None:
    now = ROW.replace(on={"x": ["two"], "y": ["three"]})
    assert tested.difference([ROW], [ROW]) == []
    assert tested.difference([ROW], [now]) == ["+ megatron.grad-norm megatron-core three: apply 1 [1] "]
    (line,) = tested.difference([ROW], [ROW.replace(verdict="unsupported", variant="", sites={})])
    assert line.startswith("* ")
    assert " -> unsupported" in line
    assert tested.difference([now], [ROW])[0].startswith("- ")


def test_a_replaced_site_that_is_new_is_for_a_person_to_judge() -> None:
    patch = load_patches()["megatron.reduce-contiguous"]
    target = patch.targets[0]
    site = target.variants[0].replacements[0].site
    old = ROW.replace(patch=patch.id, target=target.project.name, sites={site: "1"})
    new = old.replace(sites={site: "2"})
    abouts = [(patch, target)]
    assert tested.unjudged([old], [old], abouts) == []
    assert tested.unjudged([], [new], abouts) == []
    assert tested.unjudged([old], [old, new.replace(verdict="fixed-upstream")], abouts) == []
    (line,) = tested.unjudged([old], [old, new], abouts)
    assert line == f"{patch.id} on two: {site} is 2, which nobody has judged"


def test_equal_files_that_are_said_to_be_two_things_are_refused() -> None:
    patch = load_patches()["megatron.reduce-contiguous"]
    old = ROW.replace(patch=patch.id, verdict="unsupported", variant="", sites={})
    other = old.replace(verdict="expired", on={"x": ["one"]})
    (line,) = tested.contradictions([old, other], [(patch, patch.targets[0])], {})
    assert line == f"{patch.id} on two is unsupported, and of equal files {patch.id} on one is expired"
    assert (
        tested.contradictions([old, other.replace(on={"y": ["one"]})], [(patch, patch.targets[0])], {}) == []
    )


def test_a_line_is_a_row() -> None:
    text = tested.text_of({"two": {"date": "2026-02-01"}}, [ROW, ROW])
    assert len(text.splitlines()) == 3 + 2 + 2
    assert '"imported"' not in text
