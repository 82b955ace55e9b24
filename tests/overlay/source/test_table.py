"""Deciding by what a patch was tested on: a row for a source, and what it says of another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from decide_cases import FILES, F, look, never, patch, quiet, rows, tree, variant
from hypothesis import example, given, settings
from hypothesis import strategies as st

from overlay.errors import OverlayError
from overlay.patch import Calls, Patch, replaced
from overlay.patch import variant as variant_of
from overlay.source.decide import decide
from overlay.source.source import Tree
from overlay.source.table import Row, Table, read

PATCH = patch()
CORE = FILES["lib/core.py"]
OTHER_F = CORE.replace("return x", "return -x")
LONGER = f"{CORE}\nmore = 1\n"
CALLER = f"{CORE}\ndef h():\n    f(1)\n"


def row(of: Tree | None = None, **fields: Any) -> Row:
    """Return the row that says that the patch applies, of a source or by its sites alone."""
    (made,) = rows(PATCH, on=of)
    return made.replace(**{**({} if of is not None else {"on": {}}), **fields})


def word(source: Tree, *rows: Row, of: Patch = PATCH) -> str | None:
    found = Table(rows).find(of, of.targets[0], source)
    return None if found is None else found.verdict


def test_the_files_decide_and_nothing_is_parsed() -> None:
    source = tree()
    found = decide(PATCH, source, Table([row(tree())]))
    assert (found.verdict, found.targets[0].variant, found.targets[0].version) == ("apply", "1", "1.2.0")
    assert [(one.site, one.digest) for one in found.targets[0].findings] == [(F, tree().digest(F))]
    assert source._modules == {}


def test_what_needs_a_person_counts_for_its_very_files_alone() -> None:
    loud = row(tree(), verdict="unknown-source", variant="", evidence="the contract fails")
    assert word(tree(), loud) == "unknown-source"
    assert word(tree(), row(), loud) == word(tree(), row(tree()), loud) == "unknown-source"
    assert word(tree(), loud, row(tree())) == "apply"
    assert look(PATCH, tree(), loud).reason == "the contract fails"
    assert word(tree(core=LONGER), loud) is None
    # Whichever is read first, a row that passed still speaks for sources that are alike.
    elsewhere = row(tree(core=LONGER))
    for known in ((loud, elsewhere), (elsewhere, loud)):
        assert word(tree(core=f"{LONGER}more += 1\n"), *known) == "apply"


def test_that_nothing_is_to_be_done_takes_all_sites_and_one_that_is_there() -> None:
    subject, mended = patch(tells=("lib.new",)), tree(core=OTHER_F)
    needless = quiet(subject, mended, on={})
    assert needless.sites == {F: mended.digest(F), "lib.new": None}
    assert word(mended, needless, of=subject) == "not-needed"
    assert word(tree(core=OTHER_F, new=""), needless, of=subject) is None
    # One that says nothing of a site that the patch names, and one that finds nothing at any.
    assert word(mended, needless.replace(sites={F: mended.digest(F)}), of=subject) is None
    nothing = needless.replace(sites={F: None, "lib.new": None})
    assert word(tree(core="a = 1\n"), nothing, of=subject) is None
    of_its_files = quiet(subject, tree(core="a = 1\n"))
    assert word(tree(core="a = 1\n"), of_its_files, of=subject) == "not-needed"
    assert word(tree(core="a = 2\n"), of_its_files, of=subject) is None


def test_a_row_from_when_the_patch_asked_something_else_of_a_site_decides_nothing() -> None:
    for said in ("calls g", True, None):
        for of in (None, tree()):
            assert word(tree(core=f"{CALLER}def f():\n    g()\n"), row(of, sites={F: said})) is None
            assert word(tree(), row(of, sites={F: said})) is None


def test_rows_that_say_different_things_of_equal_sites_decide_nothing() -> None:
    both = patch(variant(), variant("lib.core:A", name="1b"))
    one, other = row(), row(variant="1b", sites={one: tree().digest(one) for one in (F, "lib.core:A")})
    assert word(tree(), one, of=both) == "apply"
    assert word(tree(), one, other, of=both) is None
    assert look(both, tree(core=LONGER), one, other, on=tree(core=LONGER)).verdict == "apply"  # by its files
    reason = decide(both, tree(), Table([one, other.replace(on={"0": ["lib==1.1"]})])).reason
    assert "tested sources that contradict each other" in reason
    needless = quiet(
        both, tree(), on={}, sites={F: tree().digest(F), "lib.core:A": tree().digest("lib.core:A")}
    )
    assert word(tree(), one, needless, of=both) is None


def test_a_row_of_another_state_of_the_patch_decides_nothing() -> None:
    more = variant_of("1", replaced(F, never), replaced("lib.core:A.g", never))
    assert word(tree(), row(tree()), of=patch(more)) is None
    assert word(tree(), row(tree()), of=patch(variant("lib.core:A.g"))) is None
    assert word(tree(), row(tree()), of=patch(variant(name="new"))) is None


def test_a_call_that_is_relied_on_may_have_anything_around_it() -> None:
    calling = patch(variant(Calls(site="lib.core:h", callee="f")))
    made = rows(calling, on=tree(core=CALLER))
    assert dict(made[0].sites) == {F: tree().digest(F), "lib.core:h": "calls f"}
    assert word(tree(core=CALLER.replace("f(1)", "f(2)\n    return 3")), *made, of=calling) == "apply"
    assert word(tree(core=CALLER.replace("f(1)", "return f(1)")), *made, of=calling) == "apply"
    assert word(tree(core=CALLER.replace("f(1)", "g(1)")), *made, of=calling) is None
    lasting = patch(variant(Calls(site="lib.core:h", callee="f", last=True)))
    made = rows(lasting, on=tree(core=CALLER))
    assert word(tree(core=CALLER), *made, of=lasting) == "apply"
    assert word(tree(core=CALLER.replace("f(1)", "f(1)\n    return 3")), *made, of=lasting) is None


def test_where_a_name_comes_from_is_told_without_parsing() -> None:
    source = tree()
    Table([row(tree())]).find(PATCH, PATCH.targets[0], source)
    assert source.chain(F) == [F]
    assert source._modules == {}
    source = tree(new="from lib.core import f\n")
    Table([row(tree(), imported={F: "lib.new:f"})]).find(PATCH, PATCH.targets[0], source)
    assert source.chain(F) == [F, "lib.new:f"]  # and back again, which ends it
    assert [*source._modules] == ["lib.new"]


def test_the_first_release_without_a_fault_is_the_one_after_all_that_have_it() -> None:
    def of(verdict: str, *names: str, variant: str = "1") -> Row:
        return row(verdict=verdict, variant=variant, on={f"{verdict}{names}": [*names]})

    has = of("apply", "lib==1.0", "lib==1.9", "lib==1.10", "lib at abc", "other==9")
    free = of("not-needed", "lib==0.9", "lib==2.1", "lib==2.0", "lib at def", variant="")
    table = Table([has, free])
    assert table.first_without("lib.f", "lib") == "2.0"
    assert Table([has]).first_without("lib.f", "lib") is None
    assert Table([free]).first_without("lib.f", "lib") is None
    assert Table([has, of("not-needed", "lib==1.5")]).first_without("lib.f", "lib") is None
    assert Table([has, of("unknown-source", "lib==3.0")]).first_without("lib.f", "lib") is None
    # Of what one variant mends: that of another does not have it.
    later = of("apply", "lib==1.11", variant="b")
    assert Table([has, later, free]).first_without("lib.f", "lib") == "2.0"
    assert Table([has, later, free]).first_without("lib.f", "lib", ("1",)) == "1.11"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"rows": 1}', '{"rows": [{"patch": "a"}]}', '{"rows": [{"a": 1}]}']
)
def test_what_is_no_table_is_an_error_that_names_the_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(OverlayError, match=r"broken\.json is no table"):
        read(str(path))


#: Sources of each site, of which the first is that of `tree()`; and what a row may say of one.
SITES = {
    F: ("def f(x):\n    return x\n", "def f(x):\n    return -x\n", ""),
    "lib.core:h": ("", "def h(): pass\n", "def h(): return 2\n"),
}


@st.composite
def drawn(draw: Any) -> tuple[str, ...]:
    return tuple(draw(st.sampled_from(texts)) for texts in SITES.values())


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(drawn(), st.sampled_from(["apply", "not-needed"])), max_size=4), drawn())
# A function that moved away: the source may be as broken as the one that was tested.
@example([((SITES[F][0], ""), "apply"), (("", ""), "not-needed")], ("", ""))
@example(
    [((SITES[F][0], ""), "apply"), (("", SITES["lib.core:h"][1]), "not-needed")], ("", SITES["lib.core:h"][1])
)
def test_what_is_decided_is_what_the_rule_says(
    looked_at: list[tuple[Any, str]], here: tuple[str, ...]
) -> None:
    """Against the rule in its own words: later rows of a source win, and equal sites must agree."""
    subject = patch(tells=("lib.core:h",))

    def source(texts: tuple[str, ...], more: str = "") -> Tree:
        return tree(core="\n".join((*texts, "class A: pass", more)))

    made, said = [], {}
    for number, (texts, verdict) in enumerate(looked_at):
        on = source(texts)
        if verdict == "apply" and texts[0]:
            made += rows(subject, on=on, name=f"lib=={number}")
        elif verdict != "apply":
            made.append(quiet(subject, on, name=f"lib=={number}"))
        else:
            continue
        said[texts] = verdict
    table = Table(made)
    assert decide(subject, source(here), table).verdict == said.get(here, "unknown-source")
    other_files = decide(subject, source(here, "more = 1"), table)
    by_sites = said.get(here, "unknown-source")
    applying = {texts[1] for texts, verdict in said.items() if verdict == "apply"}
    if not here[0] and here[1] in {"", *applying}:  # it may have moved
        by_sites = "unknown-source"
    assert other_files.verdict == by_sites
    assert bool(other_files.reason) is (other_files.verdict == "unknown-source")
