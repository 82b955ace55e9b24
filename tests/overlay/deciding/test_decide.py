"""One test per verdict, and what lies between them."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from decide_cases import FILES, GONE, OTHER, PROJECT, known, patch, tree, variant
from fake_upstream import MemoryTree

from overlay.deciding.decide import decide, settle
from overlay.deciding.plan import make_plan, plan_digest
from overlay.deciding.selection import in_order
from overlay.patch import Absent, Known, Patch, Present, Target
from overlay.verdict import LOUD, Verdict

NEGATED = "def f(x):\n    return -x\n"
FIXED = variant(verdict="fixed-upstream", reason="since 1.2")
NOT_YET = variant(
    name="0", versions="<1", shape=(Absent(site="lib.core:f"),), verdict="not-affected", reason="no f yet"
)


@pytest.mark.parametrize(
    ("subject", "source", "verdict", "words"),
    [
        (patch(), tree(), "apply", ""),
        (patch(FIXED), tree(), "fixed-upstream", "since 1.2"),
        (patch(variant(), GONE), tree(version="2.1", core="", new=""), "superseded", "moved"),
        (patch(variant(), NOT_YET), tree(version="0.9", core=""), "not-affected", "no f yet"),
        (patch(), MemoryTree({}), "not-installed", "lib is not installed"),
        (patch(), tree(core=NEGATED), "unsupported", "lib.core:f has an unknown digest"),
        (patch(), tree(core=NEGATED), "unsupported", "overlay explain lib.f"),
        (patch(), tree(core="def f(:\n"), "unsupported", "does not parse"),
        (
            patch(),
            tree(version="0.9"),
            "unsupported",
            "lib 0.9 is outside the versions that the patch knows (>=1,<2)",
        ),
        (patch(), tree(version=""), "unsupported", "cannot be told (found '')"),
        (patch(), tree(version="unknown"), "unsupported", "cannot be told (found 'unknown')"),
        (patch(), tree(version="1.2.x"), "unsupported", "cannot be told (found '1.2.x')"),
        (
            patch(variant(), GONE),
            tree(version="2.1", core=NEGATED),
            "expired",
            "lib.core:f exists",
        ),
        (patch(), tree(version="2.0", core=NEGATED), "expired", "unknown digest"),
        (patch(), tree(version="2.0rc1", core=NEGATED), "expired", "unknown digest"),
        (patch(), tree(version="1.2.0rc1"), "apply", ""),
        (patch(), tree(version="1.2.0.dev3"), "apply", ""),
        (patch(), tree(version="1.2.0+local.7"), "apply", ""),
    ],
)
def test_each_verdict_on_one_patch(subject: Patch, source: MemoryTree, verdict: str, words: str) -> None:
    found = decide(subject, source)
    assert (found.verdict, found.loud) == (verdict, verdict in LOUD)
    assert words in found.reason


def test_what_is_applied_is_named() -> None:
    verdict = decide(patch(), tree())
    assert verdict.where() == "lib 1.2.0"
    assert verdict.targets[0].variant == "1"


def test_conflict_between_two_patches_on_one_site_or_on_its_class() -> None:
    one, two = patch(), patch(name="lib.other")
    verdicts = make_plan([one, two], ["lib.f", "lib.other"], tree()).verdicts
    assert [verdict.verdict for verdict in verdicts] == ["conflict", "conflict"]
    assert "lib.other claims lib.core:f too" in verdicts[0].reason
    method, whole = (
        patch(variant(site="lib.core:A.g"), name="lib.method"),
        patch(variant(site="lib.core:A"), name="lib.whole"),
    )
    settled = settle([method, whole], {p.id: decide(p, tree()) for p in (method, whole)})
    assert {verdict.verdict for verdict in settled.values()} == {"conflict"}
    apart = settle([one, method], {p.id: decide(p, tree()) for p in (one, method)})
    assert {verdict.verdict for verdict in apart.values()} == {"apply"}


def test_not_selected() -> None:
    plan = make_plan([patch()], [], tree())
    assert plan.verdicts[0].verdict == "not-selected"
    assert plan.loud == ()


def test_a_requirement_that_does_not_apply() -> None:
    one, two = (
        patch(requires=("lib.other",)),
        patch(variant(site="lib.core:A.g", versions=">=2"), name="lib.other"),
    )
    plan = make_plan([one, two], ["lib.f", "lib.other"], tree())
    assert [verdict.patch for verdict in plan.verdicts] == ["lib.other", "lib.f"]
    assert plan.verdicts[1].verdict == "unsupported"
    assert "needs lib.other, which is unsupported" in plan.verdicts[1].reason
    assert (
        make_plan([one, two], ["lib.f"], tree()).verdicts[-1].reason
        == "it needs lib.other, which is not-selected"
    )
    assert in_order({"a": patch(name="a", requires=("a",))}) == ["a"]


def test_an_optional_target_counts_only_if_it_is_there() -> None:
    shape = (known("other:h", {"other.py": "def h(): pass\n"}),)
    target = Target(
        project=OTHER,
        optional=True,
        variants=(variant(name="o", site="other:h", shape=shape, versions=">=1"),),
    )
    both = patch(others=(target,))
    assert decide(both, tree()).verdict == "apply"
    there = {**FILES, "other.py": "def h(): pass\n", "other/VERSION": "1.0"}
    assert decide(both, MemoryTree(there)).where() == "lib 1.2.0, other 1.0"
    changed = decide(both, MemoryTree({**there, "other.py": "def h(): return 1\n"}))
    assert changed.verdict == "unsupported"
    assert changed.reason.startswith("other 1.0: ")
    needed = patch(others=(target.replace(optional=False),))
    assert decide(needed, tree()).verdict == "not-installed"


def test_metadata_that_disagrees_with_the_source_is_reported() -> None:
    stale = MemoryTree(FILES, {"lib": "1.1.0"})
    assert decide(patch(), stale).targets[0].metadata_version == "1.1.0"
    assert decide(patch(), MemoryTree(FILES, {"lib": "1.2.0"})).targets[0].metadata_version == ""


def test_the_digest_of_a_plan_is_that_of_what_runs() -> None:
    one = make_plan([patch()], ["lib.f"], tree())
    assert one.digest == make_plan([patch()], ["lib.f"], tree()).digest
    assert one.digest == make_plan([patch(), patch(name="lib.left-out")], ["lib.f"], tree()).digest
    assert one.digest != make_plan([patch().replace(revision=2)], ["lib.f"], tree()).digest
    assert one.digest != make_plan([patch()], ["lib.f"], tree(version="1.2.1")).digest
    assert one.digest != make_plan([patch()], [], tree()).digest
    assert one.digest != make_plan([patch(variant(name="other"))], ["lib.f"], tree()).digest
    changed = Known(
        site="lib.core:f",
        digests=(*known().digests, tree(core="def f(x): return 2").digest("lib.core:f") or ""),
    )
    loose = patch(variant(shape=(changed,)))
    assert plan_digest([decide(loose, tree())]) != plan_digest(
        [decide(loose, tree(core="def f(x): return 2"))]
    )


class Broken(MemoryTree):
    """A tree of which one question raises."""

    def __init__(self, question: str, error: Exception) -> None:
        super().__init__(FILES)

        def fail(*_arguments: Any) -> Any:
            raise error

        setattr(self, question, fail)


@pytest.mark.parametrize(
    "question", ["source", "read", "metadata_version", "has", "digest", "_answer", "doubt"]
)
@pytest.mark.parametrize(
    "error", [MemoryError(), RecursionError("deep"), ModuleNotFoundError("no"), KeyError(3)]
)
def test_whatever_a_tree_raises_is_unsupported_with_a_reason(question: str, error: Exception) -> None:
    verdict = decide(patch(variant(shape=(known(), Absent(site="lib.core:h")))), Broken(question, error))
    assert verdict.verdict == "unsupported"
    assert type(error).__name__ in verdict.reason
    assert not verdict.reason.endswith(": ")
    assert verdict.where() == "lib of unknown version"


def test_the_version_that_cannot_be_read_says_so() -> None:
    def read_version(read: Any) -> str:
        raise ModuleNotFoundError("tomllib")

    target = patch().targets[0]
    broken = patch().replace(targets=(target.replace(project=PROJECT.replace(read_version=read_version)),))
    verdict = decide(broken, tree())
    assert verdict.verdict == "unsupported"
    assert verdict.reason == "the version of lib cannot be read: ModuleNotFoundError: tomllib"


def test_without_packaging_nothing_applies_and_the_reason_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "packaging.version", None)
    verdict = decide(patch(), tree())
    assert verdict.verdict == "unsupported"
    assert "`packaging`, by which versions are compared, cannot be imported" in verdict.reason


def test_an_expression_that_is_too_deep_is_unsupported() -> None:
    for terms in (1500, 5000):  # the second is too deep for some Pythons to parse, and 3.10 dies of more
        verdict = decide(patch(), tree(core=f"def f(x):\n    return {'+'.join(['x'] * terms)}\n"))
        assert verdict.verdict == "unsupported"
        assert "lib.core:f" in verdict.reason


def test_a_project_without_its_marker_is_there_if_what_is_replaced_is() -> None:
    marked = patch().targets[0].replace(project=PROJECT.replace(marker="lib.mark"))
    verdict = decide(patch().replace(targets=(marked,)), tree())
    assert verdict.verdict == "unsupported"
    assert verdict.reason == "lib.core is there, and lib.mark, which every lib has, is not"
    broken = decide(patch().replace(targets=(marked,)), tree(core="def f(:"))
    assert broken.verdict == "unsupported"
    optional = patch(others=(marked.replace(optional=True),))
    assert decide(optional, tree()).verdict == "unsupported"


def test_a_project_is_not_there_because_another_has_what_stands_in_for_its_own() -> None:
    marked = patch().targets[0].replace(project=PROJECT.replace(marker="other.mark"))
    verdict = decide(patch().replace(targets=(marked,)), tree())
    assert (verdict.verdict, verdict.reason) == ("not-installed", "lib is not installed")


CLASS = "class A:\n    {}\n    def g(self):\n        return 1\n"


@pytest.mark.parametrize(
    ("core", "site", "words"),
    [
        ("@deco(1)\ndef f(x): pass\n", "lib.core:f", "is decorated (@deco), and what stands there"),
        ("@a.b\nasync def f(x): pass\n", "lib.core:f", "(@a.b)"),
        ("from .other import f\n", "lib.core:f", "is decorated (@deco)"),
        (CLASS.format("@property"), "lib.core:A.g", "is a property"),
        (CLASS.format("@g.setter"), "lib.core:A.g", "is a property"),
        (CLASS.format("@staticmethod\n    @deco"), "lib.core:A.g", "is decorated (@deco)"),
        ("class A:\n    def __g(self): pass\n", "lib.core:A.__g", "private name"),
        ("from .none import f\n", "lib.core:f", ""),
        ("def f(x): pass\n", "lib.core:f", ""),
        ("def __f(x): pass\n", "lib.core:__f", ""),
        (CLASS.format("@staticmethod"), "lib.core:A.g", ""),
        (CLASS.format("@classmethod"), "lib.core:A.g", ""),
        ("@deco\nclass A:\n    def __init__(self): pass\n", "lib.core:A.__init__", ""),
    ],
)
def test_what_is_no_plain_function_at_run_time_is_unsupported(core: str, site: str, words: str) -> None:
    files = {**FILES, "lib/core.py": core, "lib/other.py": "@deco\ndef f(x): pass\n"}
    shape = (known(site, files),)
    verdict = decide(patch(variant(site=site, shape=shape)), MemoryTree(files))
    assert verdict.verdict == ("unsupported" if words else "apply")
    assert words in verdict.reason
    if words:
        assert site in verdict.reason
        only_known = variant(site="lib.core:k", shape=(*shape, shape[0].replace(site="lib.core:k")))
        assert words not in decide(patch(only_known), MemoryTree(files)).reason


def both(one: Patch, two: Patch, files: dict[str, str]) -> dict[str, Verdict]:
    found = make_plan([one, two], [one.id, two.id], MemoryTree(files)).verdicts
    return {verdict.patch: verdict for verdict in found}


def test_a_name_that_is_imported_and_what_it_is_imported_from_are_one_site() -> None:
    files = {
        **FILES,
        "lib/user.py": "from .core import f\n",
        "lib/far.py": "from lib.user import f as h\n",
        "lib/near.py": "from lib.core import f, A\n",
    }

    def claim(site: str) -> Patch:
        return patch(
            variant(site=site, shape=(known(site, files),)),
            name=f"lib.{site.replace(':', '-').replace('.', '-')}",
        )

    core, user, far, near = (claim(f"lib.{site}") for site in ("core:f", "user:f", "far:h", "near:f"))
    for one, two in ((core, user), (core, far), (user, far)):
        verdicts = both(one, two, files)
        assert {verdict.verdict for verdict in verdicts.values()} == {"conflict"}
    assert (
        "lib.lib-core-f claims lib.core:f, which bears on lib.user:f"
        in both(core, user, files)[user.id].reason
    )
    for one, two in ((user, near), (far, near)):  # names of their own in modules of their own
        assert {verdict.verdict for verdict in both(one, two, files).values()} == {"apply"}
    without_tree = settle([core, user], {p.id: decide(p, MemoryTree(files)) for p in (core, user)})
    assert {verdict.verdict for verdict in without_tree.values()} == {"apply"}


def test_star_imports_leave_things_open_and_the_finding_says_so() -> None:
    star = "from lib.other import *\n"
    after, before = tree(core=FILES["lib/core.py"] + star), tree(core=star + FILES["lib/core.py"])
    verdict = decide(patch(), after)
    assert verdict.verdict == "unsupported"
    assert "(`from lib.other import *` below it may bind it again)" in verdict.reason
    assert decide(patch(), before).verdict == "apply"
    gone = patch(variant(shape=(known(), Absent(site="lib.core:h"))))
    assert decide(gone, tree()).verdict == "apply"
    assert "lib.core:h may come from `from lib.other import *`" in decide(gone, before).reason


def test_what_is_deleted_again_is_not_present() -> None:
    wanted = patch(variant(shape=(known(), Present(site="lib.core:h"))))
    core = FILES["lib/core.py"]
    assert decide(wanted, tree(core=f"{core}def h(): pass\n")).verdict == "apply"
    assert "lib.core:h does not exist" in decide(wanted, tree(core=f"{core}del h\n")).reason
    assert decide(wanted, tree(core=f"{core}def h(): pass\ndel h\n")).verdict == "unsupported"
