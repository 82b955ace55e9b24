"""Rows as they are written: which variant may be tried on a source, and what stands in the way."""

from __future__ import annotations

import pytest
from decide_cases import FILES, F, look, never, patch, rows, tree, variant
from fake_upstream import MemoryTree

from overlay.desk.prove.rows import text_of, trial, unjudged
from overlay.patch import Absent, Present, replaced
from overlay.patch import variant as variant_of
from overlay.source.table import Table, rows_in

NEGATED = FILES["lib/core.py"].replace("return x", "return -x")
CLASS = "class A:\n    {}\n    def g(self):\n        return 1\n"


@pytest.mark.parametrize(
    ("core", "site", "words"),
    [
        ("@deco(1)\ndef f(x): pass\n", F, "is decorated (@deco), and what stands there"),
        ("@a.b\nasync def f(x): pass\n", F, "(@a.b)"),
        ("from .other import f\n", F, "is decorated (@deco)"),
        ("def f(x): pass\ndef f(x): pass\n", F, "is bound more than once"),
        (CLASS.format("@property"), "lib.core:A.g", "is a property"),
        (CLASS.format("@g.setter"), "lib.core:A.g", "is a property"),
        (CLASS.format("@staticmethod\n    @deco"), "lib.core:A.g", "is decorated (@deco)"),
        ("class A:\n    def __g(self): pass\n", "lib.core:A.__g", "private name"),
        ("def g(x): pass\n", F, "nothing that"),
        ("from .none import f\n", F, ""),
        ("def f(x): pass\n", F, ""),
        ("def __f(x): pass\n", "lib.core:__f", ""),
        ("def f(x): pass\n", "lib.__main__:f", ""),
        (CLASS.format("@staticmethod"), "lib.core:A.g", ""),
        (CLASS.format("@classmethod"), "lib.core:A.g", ""),
        ("@deco\nclass A:\n    def __init__(self): pass\n", "lib.core:A.__init__", ""),
    ],
)
def test_what_is_no_plain_function_at_run_time_is_never_tried(core: str, site: str, words: str) -> None:
    other = "@deco\ndef f(x): pass\n"
    source = MemoryTree({**FILES, "lib/core.py": core, "lib/__main__.py": core, "lib/other.py": other})
    subject = patch(variant(site=site))
    found = trial(subject, source, Table([]), "here")
    assert bool(found.choices) is not bool(words)
    if words == "nothing that":
        assert [row.verdict for row in found.absent] == ["not-needed"]
    else:
        assert words in found.refused
        assert site in found.refused or not words
    # What is merely relied on may be decorated.
    beside = {"lib/core.py": f"{core}\ndef k(): pass\n", "lib/other.py": "@deco\ndef f(x): pass\n"}
    relied = MemoryTree({**FILES, **beside})
    if words and words != "nothing that":
        assert trial(patch(variant(site, site="lib.core:k")), relied, Table([]), "here").choices


@pytest.mark.parametrize(("on", "moved"), [("lib==1.1", True), ("lib==1.3", False), ("lib image 1.3", False)])
def test_what_is_gone_is_tried_on_upstream_alone(on: str, moved: bool) -> None:
    """It may have moved, and be as broken where it is now. Before it came, there is nothing to try."""
    subject = patch()
    (applies,) = rows(subject, on=tree())
    known = Table([applies.replace(on={"0": [on]})])
    found = trial(subject, tree(core="def moved(x):\n    return x\n"), known, "here")
    assert (found.refused, len(found.absent), len(found.alone)) == (
        (f"nothing that it replaces is there, and {on} had it", 0, 1) if moved else ("", 1, 0)
    )


def test_what_a_patch_adds_was_never_there() -> None:
    added = replaced("lib.core:new", never, new=True)
    found = trial(patch(variant_of("1", added)), tree(), Table([]), "here")
    assert (len(found.choices), found.absent) == (1, ())


def test_facts_tell_variants_apart_and_the_likeliest_is_tried_first() -> None:
    later = variant(Present(site="lib.new"), name="2")
    early = variant(Absent(site="lib.new"), name="1")
    subject = patch(early, later)
    for source, name in ((tree(), "1"), (tree(new=""), "2")):
        found = trial(subject, source, Table([]), "here")
        assert [row.variant for (row,) in found.choices] == [name]
    either = patch(variant(name="a"), variant("lib.core:A.g", name="b"))
    known = patch(variant("lib.core:A.g", name="b"))
    near = Table(rows(known, on=tree(core=NEGATED)))
    far = [row.variant for (row,) in trial(either, tree(core=f"{NEGATED}#"), Table([]), "here").choices]
    assert sorted(far) == ["a", "b"]
    source = tree(core=NEGATED.replace("return 1", "return 2"))
    assert [row.variant for (row,) in trial(either, source, near, "here").choices] == ["b", "a"]


def test_what_stands_there_already_is_not_added() -> None:
    adds = patch(variant_of("1", replaced(F, never), replaced("lib.core:h", never, new=True)))
    assert trial(adds, tree(), Table([]), "here").choices
    there = tree(core=f"{FILES['lib/core.py']}def h(): pass\n")
    assert "lib.core:h is there already" in trial(adds, there, Table([]), "here").refused


def test_what_is_decided_is_not_tried() -> None:
    assert trial(patch(), tree(), Table(rows(patch())), "here").refused == "it applies here already"
    assert trial(patch(), MemoryTree({}), Table([]), "here").refused.startswith("not-installed: ")


def test_a_replaced_site_that_no_row_has_is_for_a_person() -> None:
    both = patch(variant("lib.core:A.g"))
    known = Table(rows(both))
    elsewhere = tree(core=FILES["lib/core.py"].replace("return 1", "return 2"))
    (new,) = rows(both, on=elsewhere)
    assert unjudged([new], both, known) == []
    (new,) = rows(both, on=tree(core=NEGATED))
    assert unjudged([new], both, known) == [F]
    assert unjudged([new.replace(verdict="not-needed", variant="")], both, known) == []


def test_a_table_is_read_as_it_was_written() -> None:
    made = [*rows(patch()), rows(patch())[0].replace(verdict="not-needed", variant="", sites={F: None})]
    text = text_of({"lib==1.2.0": {"date": "2026-01-01"}}, made)
    assert rows_in(text.encode(), "x") == made
    assert len(text.splitlines()) == 7


@pytest.mark.parametrize("relied", [False, True])
def test_where_an_imported_name_is_defined_counts_too(relied: bool) -> None:
    """The site has the import alone, and its file is the same when the function is mended."""
    core = "from lib.new import f\n\nclass A:\n    def g(self):\n        return f(1)\n"
    subject = patch(variant(F, site="lib.core:A.g") if relied else variant())
    before = tree(core=core, new="def f(x):\n    return x\n")
    (row,) = rows(subject, on=before)
    assert row.sites["lib.new:f"] == before.digest("lib.new:f")
    assert look(subject, before, row).verdict == "apply"
    assert look(subject, tree(core=core, new="# moved\n\ndef f(x):\n    return x\n"), row).verdict == "apply"
    mended = look(subject, tree(core=core, new="def f(x):\n    return 2 * x\n"), row)
    assert mended.verdict == "unknown-source"
    assert "lib.new:f has an unknown digest" in mended.reason
