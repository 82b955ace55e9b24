"""Every patch is held to the same form, and the form finds what breaks it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from overlay.authoring.lint import faults
from overlay.catalogue.registry import load_patches
from overlay.patch import Absent, Known, Present, Removal, Replacement, Target, Variant
from overlay.testing import applied, assert_form

if TYPE_CHECKING:
    from overlay.patch import Patch

PATCHES = load_patches()
GOOD = PATCHES["megatron.recompute"]


@pytest.fixture(params=sorted(PATCHES))
def patch(request: pytest.FixtureRequest) -> Patch:
    return PATCHES[request.param]


def test_form(patch: Patch) -> None:
    assert_form(patch, __file__)


def test_requirements_exist(patch: Patch) -> None:
    assert set(patch.requires) <= set(PATCHES)


def changed(**changes: Any) -> Patch:
    """Return a patch of the form with changes to its first variant."""
    target = GOOD.targets[0]
    variant = target.variants[0].replace(**changes)
    return GOOD.replace(targets=(target.replace(variants=(variant,)),))


def removed(**changes: Any) -> Patch:
    return GOOD.replace(remove=GOOD.remove.replace(**changes))


def not_applied(verdict: str, reason: str = "it is right") -> Patch:
    """Return a patch of the form with a second variant that does not apply."""
    target = GOOD.targets[0]
    other = Variant(name="1", versions="<0.12", verdict=verdict, shape=(Present(site="m"),), reason=reason)
    return GOOD.replace(targets=(target.replace(variants=(*target.variants, other)),))


TARGET = GOOD.targets[0]
VARIANT = TARGET.variants[0]
KNOWN = VARIANT.shape[0]
MAKE = VARIANT.replacements[0]
PRIVATE = "megatron.core.a:C.__f"
HERE = "tests/patches/test_schema.py"


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (GOOD.replace(id="megatron.Recompute"), "id: 'megatron.Recompute' is not"),
        (GOOD.replace(id="megatron.re_compute"), "id: "),
        (GOOD.replace(id="megatron"), "id: "),
        (GOOD.replace(revision=0), "revision: "),
        (GOOD.replace(summary="x" * 9), "summary: "),
        (GOOD.replace(summary="x" * 91), "summary: "),
        (GOOD.replace(summary="A full stop too many."), "summary: "),
        (GOOD.replace(summary="In two\nlines of text"), "summary: "),
        (GOOD.replace(why="x" * 78 + "."), "why: "),
        (GOOD.replace(why="x" * 90), "why: "),
        (GOOD.replace(upstream=()), "upstream: where"),
        (GOOD.replace(upstream=("NVIDIA/Megatron-LM",)), "upstream: 'NVIDIA/Megatron-LM'"),
        (GOOD.replace(upstream=("https://github.com/a/b/pull/1",)), "upstream: "),
        (removed(when=""), "remove.when: "),
        (removed(when="It is right."), "remove.when: "),
        (removed(version="next"), "remove.version: 'next'"),
        (removed(test="tests/nothing.py::test_x"), "remove.test: there is no file 'tests/nothing.py'"),
        (removed(test=f"{HERE}::test_nothing"), "remove.test: test_schema.py has no function 'test_nothing'"),
        (removed(test=f"{HERE}::test_requirements_exist"), "is not marked as one that is expected to fail"),
        (GOOD.replace(targets=()), "targets: there is none"),
        (GOOD.replace(targets=(TARGET.replace(optional=True),)), "cannot be optional"),
        (GOOD.replace(targets=GOOD.targets[1:]), "after which the patch is not named"),
        (
            GOOD.replace(targets=(TARGET.replace(serves="verl"),)),
            "serves: 'verl' is no other target's project",
        ),
        (
            GOOD.replace(targets=(TARGET.replace(serves="megatron-core"),)),
            "serves: 'megatron-core' is no other",
        ),
        (
            GOOD.replace(targets=tuple(one.replace(serves="verl") for one in GOOD.targets)),
            "or one that serves another",
        ),
        (GOOD.replace(without="it goes on"), "without: what a job does without it"),
        (GOOD.replace(companion=True), "without: what a job does without it"),
        (GOOD.replace(targets=(TARGET.replace(variants=(VARIANT, VARIANT)),)), "two variants have one name"),
        (GOOD.replace(targets=(TARGET.replace(variants=(VARIANT, VARIANT)),)), "the same versions and shape"),
        (GOOD.replace(targets=(Target(project=TARGET.project, variants=()),)), "no variant applies"),
        (changed(versions="0.16"), "versions: '0.16' is no range"),
        (changed(shape=()), "does not identify an upstream"),
        (changed(reason="because"), "reason: it applies"),
        (changed(replacements=()), "replacements: what applies has some"),
        (changed(verdict="fixed-upstream", reason="it is"), "replacements: what applies has some"),
        (not_applied("fixed-upstream", ""), "reason: why it is fixed-upstream"),
        (not_applied("fixed"), "verdict: 'fixed'"),
        (not_applied("conflict"), "verdict: 'conflict'"),
        (not_applied("expired"), "verdict: 'expired'"),
        (changed(shape=(KNOWN, Present(site="a:b:c"))), "'a:b:c' is not `module:qualname`"),
        (changed(shape=(Known(site=KNOWN.site, digests=()),)), "no digest of a source that was tested"),
        (changed(shape=(Known(site=KNOWN.site, digests=("12",)),)), "no digest of a source"),
        (changed(shape=(Present(site=KNOWN.site),)), "not in the shape as Known"),
        (changed(shape=(Known(site="a:b", digests=("0" * 12,)),)), "not in the shape as Known"),
        (changed(replacements=(MAKE.replace(new=True),)), "not in the shape as Absent"),
        (changed(replacements=(MAKE, MAKE)), "a site is replaced twice"),
        (
            changed(
                shape=(Absent(site=PRIVATE),),
                replacements=(Replacement(site=PRIVATE, make=MAKE.make, new=True),),
            ),
            "is a private name",
        ),
    ],
)
def test_what_breaks_the_form_is_named(bad: Patch, words: str) -> None:
    found = faults(bad, Path(__file__))
    assert any(words in text for text in found), found
    with pytest.raises(AssertionError) as raised:
        assert_form(bad, __file__)
    assert f"{bad.id} is not of the form" in str(raised.value)
    assert words in str(raised.value)


def test_what_is_of_the_form_stays_so_when_nothing_changes() -> None:
    assert faults(changed(), Path(__file__)) == []
    assert faults(removed(), Path(__file__)) == []
    for verdict in ("fixed-upstream", "superseded", "not-affected", "unsupported"):
        assert faults(not_applied(verdict), Path(__file__)) == []
    versioned = Removal(version="1.0rc1", when="it is right", test=GOOD.remove.test)
    assert faults(GOOD.replace(remove=versioned), Path(__file__)) == []


def test_what_the_template_says_is_found_in_the_patch_and_in_its_test(tmp_path: Path) -> None:
    test = tmp_path / "tests" / "test_x.py"
    test.parent.mkdir()
    mark = "TODO"  # in a variable: this file is one that is looked at
    test.write_text(f"@xfail\ndef test_x(): pass  # {mark}: say more\n")
    assert faults(removed(test="tests/test_x.py::test_x"), test) == [
        f"test_x.py:2 is not filled in: {mark}: say more"
    ]


def test_a_patch_that_was_never_in_place_has_not_been_tested() -> None:
    patch = PATCHES["slime.vpp-ceiling"]  # slime is in no package index, and nothing here imports it
    with pytest.raises(AssertionError, match="is armed, and nothing of it was tested"), applied(patch):
        pass
