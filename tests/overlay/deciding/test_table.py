"""Deciding by what a patch was tested on: a row for a source, and what it says of another one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from decide_cases import FILES, GONE, PROJECT, known, never, patch, tree, variant

from overlay.deciding.decide import decide
from overlay.deciding.table import Row, Table, files_digest, read
from overlay.errors import OverlayError
from overlay.patch import Calls, Replacement

if TYPE_CHECKING:
    from pathlib import Path

    from fake_upstream import MemoryTree

PATCH = patch()
F = "lib.core:f"
CORE = FILES["lib/core.py"]
OTHER_F = CORE.replace("return x", "return -x")
CALLER = f"{CORE}\ndef h():\n    f(1)\n"


def row(of: MemoryTree | None = None, **fields: Any) -> Row:
    on = {} if of is None else {files_digest(PATCH.targets[0], of): ["lib 1.2"]}
    sites = {F: tree().digest(F)}
    usual = {"patch": "lib.f", "target": "lib", "verdict": "apply", "variant": "1", "sites": sites, "on": on}
    return Row(**{**usual, **fields})


def word(source: MemoryTree, *rows: Row, of: Any = PATCH) -> str | None:
    found = Table(rows).find(of, of.targets[0], source)
    return None if found is None else found.verdict


def test_the_files_decide_and_nothing_is_parsed() -> None:
    source = tree()
    found = decide(PATCH, source, table=Table([row(tree())]))
    assert (found.verdict, found.targets[0].variant, found.targets[0].version) == ("apply", "1", "1.2.0")
    assert [(one.site, one.digest) for one in found.targets[0].findings] == [(F, tree().digest(F))]
    assert source._parsed == {}


def test_where_no_row_fits_the_shapes_are_asked() -> None:
    assert decide(PATCH, tree(), table=Table([])).verdict == "apply"
    assert decide(PATCH, tree(core=OTHER_F), table=Table([row(tree())])).verdict == "unsupported"


def test_a_version_does_not_decide() -> None:
    assert decide(PATCH, tree(version="9"), table=Table([row(tree())])).verdict == "apply"


def test_a_source_of_other_files_is_decided_by_its_sites() -> None:
    assert word(tree(core=f"{CORE}\nmore = 1\n"), row(tree())) == "apply"
    assert word(tree(core=OTHER_F), row(tree())) is None


def test_what_needs_a_person_counts_for_its_very_files_alone() -> None:
    loud = row(tree(), verdict="unsupported", variant="", evidence="the contract fails")
    assert word(tree(), loud) == "unsupported"
    assert word(tree(core=f"{CORE}\nmore = 1\n"), loud) is None


def test_that_nothing_is_to_be_done_takes_all_sites_and_one_that_is_there() -> None:
    both = patch(variant(), GONE)
    sites = {F: tree(core=OTHER_F).digest(F), "lib.new": None}
    gone = row(verdict="superseded", variant="2", sites=sites)
    assert word(tree(core=OTHER_F), gone, of=both) == "superseded"
    assert word(tree(core=OTHER_F, new=""), gone, of=both) is None
    assert word(tree(core=OTHER_F), gone.replace(sites={F: sites[F]}), of=both) is None
    nothing = gone.replace(sites={F: None, "lib.new": None})
    assert word(tree(core="a = 1\n"), nothing, of=both) is None


def test_rows_that_say_different_things_of_equal_sites_decide_nothing() -> None:
    both = patch(variant(), variant(name="1b"))
    one, other = row(), row(variant="1b", sites={F: tree().digest(F), "lib.core:A": True})
    assert word(tree(), one, of=both) == "apply"
    assert word(tree(), one, other, of=both) is None


def test_what_is_read_later_wins() -> None:
    loud = row(tree(), verdict="unsupported", variant="", evidence="found wrong since")
    assert word(tree(), row(tree()), loud) == "unsupported"
    assert word(tree(), loud, row(tree())) == "apply"


def test_a_row_of_another_state_of_the_patch_decides_nothing() -> None:
    more = (Replacement(site=F, make=never), Replacement(site="lib.core:A.g", make=never))
    changed = patch(variant(replacements=more))
    assert word(tree(), row(tree()), of=changed) is None
    assert word(tree(), row(tree()), of=patch(variant(name="new"))) is None


def test_a_call_that_is_relied_on_may_have_anything_around_it() -> None:
    calling = patch(variant(shape=(known(), Calls(site="lib.core:h", callee="f"))))
    sites = {F: tree().digest(F), "lib.core:h": "calls f"}
    assert (
        word(tree(core=CALLER.replace("f(1)", "f(2)\n    return 3")), row(sites=sites), of=calling) == "apply"
    )
    assert word(tree(core=CALLER.replace("f(1)", "return f(1)")), row(sites=sites), of=calling) == "apply"
    assert word(tree(core=CALLER.replace("f(1)", "g(1)")), row(sites=sites), of=calling) is None
    last = {**sites, "lib.core:h": "calls f last"}
    assert word(tree(core=CALLER), row(sites=last), of=calling) == "apply"
    assert word(tree(core=CALLER.replace("f(1)", "f(1)\n    return 3")), row(sites=last), of=calling) is None


def test_where_a_name_comes_from_is_told_without_parsing() -> None:
    source = tree()
    Table([row(tree())]).find(PATCH, PATCH.targets[0], source)
    assert source.chain(F) == [F]
    assert source._parsed == {}
    source = tree(new="from lib.core import f\n")
    Table([row(tree(), imported={F: "lib.new:f"})]).find(PATCH, PATCH.targets[0], source)
    assert source.chain(F) == [F, "lib.new:f"]  # and back again, which ends it
    assert [*source._parsed] == ["lib.new"]


def test_files_are_read_in_their_order(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "tested.json", tmp_path / "newer.json"
    digest = files_digest(PATCH.targets[0], tree())
    loud = {"patch": "lib.f", "target": PROJECT.name, "verdict": "unsupported", "on": {digest: ["lib 1.2"]}}
    ours.write_text(json.dumps({"sources": {}, "rows": [row(tree()).to_dict()]}))
    theirs.write_text(json.dumps({"rows": [loud]}))
    found = read([str(ours), str(theirs)]).find(PATCH, PATCH.targets[0], tree())
    assert found is not None
    assert found.verdict == "unsupported"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"rows": 1}', '{"rows": [{"patch": "a"}]}', '{"rows": [{"a": 1}]}']
)
def test_what_is_no_table_is_an_error_that_names_the_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(OverlayError, match=r"broken\.json is no table"):
        read([str(path)])
