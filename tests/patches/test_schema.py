"""Every patch is held to the same form, and the form finds what breaks it."""

from __future__ import annotations

from typing import Any

import pytest

from overlay.desk.lint import faults
from overlay.patch import Absent, Calls, Patch, Target
from overlay.source.registry import load_patches

PATCHES = load_patches()
GOOD = PATCHES["megatron.recompute"]


@pytest.fixture(params=sorted(PATCHES))
def patch(request: pytest.FixtureRequest) -> Patch:
    return PATCHES[request.param]


def test_form(patch: Patch) -> None:
    assert faults(patch) == []


def test_requirements_exist(patch: Patch) -> None:
    assert set(patch.requires) <= set(PATCHES)


def changed(**changes: Any) -> Patch:
    """Return a patch of the form with changes to its first variant."""
    target = GOOD.targets[0]
    variant = target.variants[0].replace(**changes)
    return GOOD.replace(targets=(target.replace(variants=(variant,)),))


TARGET = GOOD.targets[0]
VARIANT = TARGET.variants[0]
MAKE = VARIANT.replacements[0]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (GOOD.replace(id="megatron.Recompute"), "id: 'megatron.Recompute' is not"),
        (GOOD.replace(id="megatron.re_compute"), "id: "),
        (GOOD.replace(id="megatron"), "id: "),
        (GOOD.replace(summary="x" * 9), "summary: "),
        (GOOD.replace(summary="x" * 91), "summary: "),
        (GOOD.replace(summary="A full stop too many."), "summary: "),
        (GOOD.replace(summary="In two\nlines of text"), "summary: "),
        (GOOD.replace(why="x" * 78 + "."), "why: "),
        (GOOD.replace(why="x" * 90), "why: "),
        (GOOD.replace(upstream=()), "upstream: where"),
        (GOOD.replace(upstream=("NVIDIA/Megatron-LM",)), "upstream: 'NVIDIA/Megatron-LM'"),
        (GOOD.replace(upstream=("https://github.com/a/b/pull/1",)), "upstream: "),
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
        (GOOD.replace(targets=(TARGET.replace(variants=(VARIANT, VARIANT)),)), "or two of one name"),
        (GOOD.replace(targets=(Target(project=TARGET.project, variants=()),)), "it has no variant"),
        (changed(replacements=()), "it replaces nothing"),
        (changed(same=("a:b:c",)), "'a:b:c' is not `module:qualname`"),
        (changed(same=(MAKE.site,)), "is named twice"),
        (changed(replacements=(MAKE, MAKE)), "is named twice"),
        (changed(facts=(Calls(site="a:f", callee="g"),)), "which is neither replaced nor relied on"),
    ],
)
def test_what_breaks_the_form_is_named(bad: Patch, words: str) -> None:
    found = faults(bad)
    assert any(words in text for text in found), found


def test_what_is_of_the_form_stays_so_when_nothing_changes() -> None:
    assert faults(changed()) == []
    assert faults(changed(facts=(Absent(site="a.module"),))) == []
