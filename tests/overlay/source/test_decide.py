"""One test per verdict, and what lies between them."""

from __future__ import annotations

from typing import Any

import pytest
from decide_cases import FILES, OTHER, PROJECT, F, look, patch, quiet, rows, tree, variant
from fake_upstream import MemoryTree

from overlay.patch import Absent, Patch, Target
from overlay.source.decide import decide, make_plan, settle
from overlay.source.selection import in_order
from overlay.source.table import Table
from overlay.verdict import LOUD, Verdict

NEGATED = "def f(x):\n    return -x\n"


def gone() -> MemoryTree:
    return tree(version="2.1", core="", new="")


@pytest.mark.parametrize(
    ("source", "verdict", "words"),
    [
        (tree(), "apply", ""),
        (gone(), "not-needed", "it has moved to lib.new"),
        (MemoryTree({}), "not-installed", "lib is not installed"),
        (tree(core=NEGATED), "unknown-source", "unlike lib==1.2.0, lib.core:f has an unknown digest"),
        (tree(core=NEGATED), "unknown-source", "overlay explain lib.f"),
        (tree(core=""), "unknown-source", "lib.core:f does not exist"),
        (tree(core="def f(:\n"), "unknown-source", "does not parse"),
        # The source decides, whatever version it says it is.
        (tree(version="0.9"), "apply", ""),
        (tree(version="99!1"), "apply", ""),
        (tree(version="1.2.x"), "apply", ""),
        (tree(version=""), "apply", ""),
        (tree(version="0.9", core=NEGATED), "unknown-source", "lib.core:f has an unknown digest"),
        (tree(version="1.2.0", core="", new=""), "not-needed", "it has moved to lib.new"),
    ],
)
def test_each_verdict_on_one_patch(source: MemoryTree, verdict: str, words: str) -> None:
    subject = patch(tells=("lib.new",))
    found = look(subject, source, quiet(subject, gone(), evidence="it has moved to lib.new"))
    assert (found.verdict, found.loud) == (verdict, verdict in LOUD)
    assert words in found.reason
    assert bool(found.reason) is (verdict != "apply")


def test_what_is_applied_is_named() -> None:
    verdict = look(patch())
    assert verdict.where() == "lib 1.2.0"
    assert (verdict.targets[0].variant, verdict.targets[0].tested_on) == ("1", "lib==1.2.0")
    assert look(patch(), tree(version="")).where() == "lib of unknown version"


def test_a_patch_that_was_tested_on_nothing_is_not_applied() -> None:
    verdict = decide(patch(), tree(), Table([]))
    assert (verdict.verdict, verdict.reason) == ("unknown-source", "the patch was not tested on any lib")


def test_conflict_between_two_patches_on_one_site_or_on_its_class() -> None:
    one, two = patch(), patch(name="lib.other")
    verdicts = make_plan([one, two], ["lib.f", "lib.other"], tree(), Table(rows(one, two))).verdicts
    assert [verdict.verdict for verdict in verdicts] == ["conflict", "conflict"]
    assert "lib.other claims lib.core:f too" in verdicts[0].reason
    method, whole = (
        patch(variant(site="lib.core:A.g"), name="lib.method"),
        patch(variant(site="lib.core:A"), name="lib.whole"),
    )
    settled = settle([method, whole], {p.id: look(p) for p in (method, whole)}, tree())
    assert {verdict.verdict for verdict in settled.values()} == {"conflict"}
    apart = settle([one, method], {p.id: look(p) for p in (one, method)}, tree())
    assert {verdict.verdict for verdict in apart.values()} == {"apply"}


@pytest.mark.parametrize(
    ("relies", "replaces", "requires", "word"),
    [
        ("lib.f", "bee/lib.g", False, "conflict"),
        ("acme/lib.f", "bee/lib.g", False, "conflict"),
        ("lib.f", "bee/lib.g", True, "apply"),  # its author has tried both
        ("bee/lib.f", "bee/lib.g", False, "apply"),
        (
            "bee/lib.f",
            "lib.g",
            False,
            "apply",
        ),  # a contract of a pack is run with all that comes with overlay
    ],
)
def test_a_pack_that_replaces_what_another_patch_relies_on(
    relies: str, replaces: str, requires: bool, word: str
) -> None:
    one = patch(variant("lib.core:A.g"), name=relies)
    other = patch(variant(site="lib.core:A.g"), name=replaces, requires=(relies,) if requires else ())
    settled = settle([one, other], {p.id: look(p) for p in (one, other)}, tree())
    assert (settled[relies].verdict, settled[replaces].verdict) == (word, "apply")
    said = f"{replaces} replaces lib.core:A.g, which it relies on: select one of them"
    assert settled[relies].reason == (said if word == "conflict" else "")


def test_a_requirement_that_does_not_apply() -> None:
    one, two = (patch(requires=("lib.other",)), patch(variant(site="lib.core:A.g"), name="lib.other"))
    table = Table(rows(one))
    plan = make_plan([one, two], ["lib.f", "lib.other"], tree(), table)
    assert [verdict.patch for verdict in plan.verdicts] == ["lib.other", "lib.f"]
    assert [verdict.verdict for verdict in plan.verdicts] == ["unknown-source", "conflict"]
    assert plan.verdicts[1].reason == "it needs lib.other, which is unknown-source"
    assert plan.loud == plan.verdicts
    assert (
        make_plan([one, two], ["lib.f"], tree(), table).verdicts[-1].reason
        == "it needs lib.other, which is not-selected: select it, too"
    )
    assert in_order({"a": patch(name="a", requires=("a",))}) == ["a"]


def test_a_patch_whose_work_another_does_is_not_needed() -> None:
    one, two = patch(includes=("lib.other",)), patch(name="lib.other")
    plan = make_plan([one, two], ["lib.f", "lib.other"], tree(), Table(rows(one, two)))
    assert {one.patch: (one.verdict, one.reason) for one in plan.verdicts} == {
        "lib.f": ("apply", ""),
        "lib.other": ("not-needed", "lib.f does it too"),
    }
    alone = make_plan([one, two], ["lib.f", "lib.other"], tree(), Table(rows(two)))
    assert {one.patch: one.verdict for one in alone.verdicts} == {
        "lib.f": "unknown-source",
        "lib.other": "apply",
    }


def test_an_optional_target_counts_only_if_it_is_there() -> None:
    files = {**FILES, "other.py": "def h(): pass\n", "other/VERSION": "1.0"}
    target = Target(project=OTHER, optional=True, variants=(variant(name="o", site="other:h"),))
    both = patch(others=(target,))
    there = MemoryTree(files)
    assert look(both, tree(), on=there).verdict == "apply"
    assert look(both, there, on=there).where() == "lib 1.2.0, other 1.0"
    changed = look(both, MemoryTree({**files, "other.py": "def h(): return 1\n"}), on=there)
    assert changed.verdict == "unknown-source"
    assert changed.reason.startswith("other 1.0: ")
    needed = patch(others=(target.replace(optional=False),))
    assert look(needed, tree(), on=there).verdict == "not-installed"


class Broken(MemoryTree):
    """A tree of which one question raises."""

    def __init__(self, question: str, error: Exception) -> None:
        super().__init__({**FILES, "lib/core.py": f"{FILES['lib/core.py']}\nmore = 1\n"})

        def fail(*_arguments: Any) -> Any:
            raise error

        setattr(self, question, fail)


@pytest.mark.parametrize(
    "question", ["source", "read", "metadata_version", "has", "digest", "_answer", "presence", "text_digest"]
)
@pytest.mark.parametrize(
    "error", [MemoryError(), RecursionError("deep"), ModuleNotFoundError("no"), KeyError(3)]
)
def test_whatever_a_tree_raises_is_unknown_with_a_reason(question: str, error: Exception) -> None:
    verdict = look(patch(variant(Absent(site="lib.core:h"))), Broken(question, error))
    assert verdict.verdict == "unknown-source"
    assert type(error).__name__ in verdict.reason
    assert not verdict.reason.endswith(": ")
    assert verdict.where() == "lib of unknown version"


def test_the_version_that_cannot_be_read_says_so() -> None:
    def read_version(read: Any) -> str:
        raise ModuleNotFoundError("tomllib")

    target = patch().targets[0]
    broken = patch().replace(targets=(target.replace(project=PROJECT.replace(read_version=read_version)),))
    verdict = look(broken)
    assert verdict.verdict == "unknown-source"
    assert verdict.reason == "the version of lib cannot be read: ModuleNotFoundError: tomllib"


def test_a_project_without_its_marker_is_there_if_what_is_replaced_is() -> None:
    marked = patch().targets[0].replace(project=PROJECT.replace(marker="lib.mark"))
    verdict = look(patch().replace(targets=(marked,)))
    assert verdict.verdict == "unknown-source"
    assert verdict.reason == "lib.core is there, and lib.mark, which every lib has, is not"
    broken = look(patch().replace(targets=(marked,)), tree(core="def f(:"))
    assert broken.verdict == "unknown-source"
    optional = patch(others=(marked.replace(optional=True),))
    assert look(optional).verdict == "unknown-source"


def test_a_project_is_not_there_because_another_has_what_stands_in_for_its_own() -> None:
    marked = patch().targets[0].replace(project=PROJECT.replace(marker="other.mark"))
    verdict = look(patch().replace(targets=(marked,)))
    assert (verdict.verdict, verdict.reason) == ("not-installed", "lib is not installed")


def both(one: Patch, two: Patch, files: dict[str, str]) -> dict[str, Verdict]:
    source = MemoryTree(files)
    table = Table(rows(one, two, on=source))
    found = make_plan([one, two], [one.id, two.id], source, table).verdicts
    return {verdict.patch: verdict for verdict in found}


def test_a_name_that_is_imported_and_what_it_is_imported_from_are_one_site() -> None:
    files = {
        **FILES,
        "lib/user.py": "from .core import f\n",
        "lib/far.py": "from lib.user import f as h\n",
        "lib/near.py": "from lib.core import f, A\n",
    }

    def claim(site: str) -> Patch:
        return patch(variant(site=site), name=f"lib.{site.replace(':', '-').replace('.', '-')}")

    core, user, far, near = (claim(f"lib.{site}") for site in ("core:f", "user:f", "far:h", "near:f"))
    for one, two in ((core, user), (core, far), (user, far)):
        verdicts = both(one, two, files)
        assert {verdict.verdict for verdict in verdicts.values()} == {"conflict"}
    assert (
        "lib.lib-core-f claims lib.core:f, which bears on lib.user:f"
        in both(core, user, files)[user.id].reason
    )
    for relied, pack in (("lib.core:f", user), ("lib.user:f", core)):
        relies = patch(variant(relied, site="lib.core:A.g"), name="lib.relies")
        assert both(relies, pack.replace(id="bee/lib.pack"), files)["lib.relies"].verdict == "conflict"
    for one, two in ((user, near), (far, near)):  # names of their own in modules of their own
        assert {verdict.verdict for verdict in both(one, two, files).values()} == {"apply"}


def test_star_imports_leave_things_open() -> None:
    star = "from lib.other import *\n"
    after, before = tree(core=FILES["lib/core.py"] + star), tree(core=star + FILES["lib/core.py"])
    verdict = look(patch(), after)
    assert verdict.verdict == "unknown-source"
    assert "has an unknown digest" in verdict.reason
    assert look(patch(), before).verdict == "apply"
    absent = patch(variant(Absent(site="lib.core:h")))
    assert look(absent).verdict == "apply"
    assert "lib.core:h may come from `from lib.other import *`" in look(absent, before).reason


def test_the_nearest_tested_source_is_the_one_that_the_reason_speaks_of() -> None:
    both_sites = patch(variant("lib.core:A.g"))
    far = rows(both_sites, on=tree(core="def f(x): return 7\nclass A:\n    g = 8\n"), name="lib==1.0")
    near = rows(both_sites, name="lib==1.1")
    source = tree(core=FILES["lib/core.py"].replace("return 1", "return 2"))
    for order in ([*far, *near], [*near, *far]):
        verdict = decide(both_sites, source, Table(order))
        assert verdict.targets[0].tested_on == "lib==1.1"
        assert "unlike lib==1.1, lib.core:A.g has an unknown digest" in verdict.reason
        assert {one.site: one.holds for one in verdict.targets[0].findings} == {
            F: True,
            "lib.core:A.g": False,
        }
    # A source on which it applies says more of the patch than one that needs none.
    needless = quiet(both_sites, tree(core=FILES["lib/core.py"].replace("return x", "return +x")))
    assert decide(both_sites, source, Table([*near, needless])).targets[0].tested_on == "lib==1.1"
    both_differ = decide(both_sites, tree(core=NEGATED), Table(near)).reason
    assert "(and 1 more)" in both_differ
