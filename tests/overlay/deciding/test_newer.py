"""A version past those that a patch was tried on, and a source that it knows."""

from __future__ import annotations

from typing import Any

import pytest
from decide_cases import GONE, PROJECT, known, never, patch, tree, variant
from hypothesis import example, given, settings
from hypothesis import strategies as st
from packaging.version import Version

from overlay.deciding import versions as _versions
from overlay.deciding.decide import decide
from overlay.patch import Absent, Known, Patch, Present, Replacement, Target, Variant

NOTE = "newer than >=1,<2, on which it was tried; its source is known to the letter"


@pytest.mark.parametrize("version", ["1.9.9.post1", "2.0", "2.1rc1", "99", "1!0.1"])
def test_a_source_that_is_known_is_applied_to_past_the_last_version_and_the_reason_says_so(
    version: str,
) -> None:
    verdict = decide(patch(), tree(version=version))
    assert (verdict.verdict, verdict.targets[0].variant) == ("apply", "1")
    if _versions.contains(">=1,<2", Version(version)):
        assert verdict.reason == ""
    else:
        assert verdict.reason.startswith(f"lib {version} is {NOTE}")


def test_against_the_removal_too_and_the_reason_says_so() -> None:
    verdict = decide(patch(variant(), GONE), tree(version="2.1"))
    assert verdict.verdict == "apply"
    assert verdict.reason == f"lib 2.1 is {NOTE}, although 2.0 was to end the patch (it is right)"
    assert not verdict.loud


@pytest.mark.parametrize("version", ["0.9", "0.9.9", "1.0rc1", "0!0.5"])
def test_the_lower_bound_stays(version: str) -> None:
    verdict = decide(patch(), tree(version=version))
    assert verdict.verdict == "unsupported"
    assert "outside the versions that the patch knows (>=1,<2)" in verdict.reason


def test_all_that_is_replaced_has_to_be_known_to_the_letter() -> None:
    replaced = tuple(Replacement(site=f"lib.core:{name}", make=never) for name in ("f", "A.g"))
    for shape, expected in (((known(), known("lib.core:A.g")), "apply"), ((known(),), "expired")):
        two = variant(shape=(*shape, Present(site="lib.core:A.g")), replacements=replaced)
        assert decide(patch(two), tree(version="1.5")).verdict == "apply"
        assert decide(patch(two), tree(version="3")).verdict == expected


def test_what_is_not_known_to_the_letter_is_not_applied_to() -> None:
    changed = decide(patch(), tree(version="3", core="def f(x):\n    return -x\n"))
    assert changed.verdict == "expired"
    assert "and its source is none of theirs: lib.core:f has an unknown digest" in changed.reason
    assert changed.targets[0].findings
    for shape in ((Present(site="lib.core:f"),), (Present(site="lib.core:f"), known("lib.core:A.g"))):
        assert decide(patch(variant(shape=shape)), tree(version="1.5")).verdict == "apply"
        assert decide(patch(variant(shape=shape)), tree(version="3")).verdict == "expired"
    new = (Replacement(site="lib.core:h", make=never, new=True),)
    absent = (Absent(site="lib.core:h"),)
    for asked, expected in (((known(), *absent), "apply"), (absent, "expired")):
        assert decide(patch(variant(shape=asked, replacements=new)), tree(version="3")).verdict == expected


def test_fixed_upstream_comes_first_and_no_other_variant_may_hold_as_well() -> None:
    fixed = variant(
        name="2",
        versions=">=2",
        verdict="fixed-upstream",
        shape=(Present(site="lib.core:f"),),
        reason="since 2",
    )
    assert decide(patch(variant(), fixed), tree(version="2.5")).verdict == "fixed-upstream"
    later = fixed.replace(versions=">=3")
    verdict = decide(patch(variant(), later), tree(version="2.5"))
    assert verdict.verdict == "expired"
    assert "as in >=1,<2 (apply) and as in >=3 (fixed-upstream): which of them" in verdict.reason
    twin = variant(name="b", versions=">=0.1,<1")
    assert decide(patch(variant(), twin), tree(version="1.5")).verdict == "apply"
    assert decide(patch(variant(), twin), tree(version="2.5")).verdict == "expired"


@pytest.mark.parametrize(
    ("versions", "version", "expected"),
    [
        ("<2", "2.5", True), ("<=2", "2.5", True), (">=1,<2", "0.5", False), ("==1.*", "2", False),
        ("~=1.2", "2", False), (">=1,<2,!=3", "3", False), (">=1", "5", False), ("", "5", False),
        (">=1,<2", "1.5", False), ("<2.0.dev0", "2.0rc1", True),
    ],
)  # fmt: skip
def test_only_an_upper_bound_can_be_passed(versions: str, version: str, expected: bool) -> None:
    assert _versions.exceeds(versions, Version(version)) is expected


SITES = ("lib.core:f", "lib.core:A.g", "lib.core:missing")


def _condition(kind: str, site: str) -> Known | Present | Absent:
    if kind == "absent":
        return Absent(site=site)
    if kind == "present":
        return Present(site=site)
    return known(site) if kind == "known" else Known(site=site, digests=("0" * 12,))


@st.composite
def variants(draw: Any) -> Variant:
    low, high = draw(st.integers(0, 4)), draw(st.integers(1, 6))
    versions = ",".join(
        text
        for text, kept in ((f">={low}", draw(st.booleans())), (f"<{low + high}", draw(st.booleans())))
        if kept
    )
    kinds = st.sampled_from(["known", "known", "other", "present", "absent"])
    shape = tuple(
        _condition(draw(kinds), site)
        for site in draw(st.lists(st.sampled_from(SITES), min_size=1, unique=True))
    )
    verdict = draw(st.sampled_from(["apply", "apply", "fixed-upstream", "superseded", "not-affected"]))
    put = draw(st.lists(st.sampled_from(SITES[:2]), min_size=1, unique=True)) if verdict == "apply" else []
    return Variant(
        name="?", versions=versions, verdict=verdict, shape=shape, reason="" if put else "so",
        replacements=tuple(Replacement(site=site, make=never) for site in put),
    )  # fmt: skip


def holds(condition: Any) -> bool:
    """Say from how the conditions are made here whether the one source that is decided on meets one."""
    there = condition.site != "lib.core:missing"
    if isinstance(condition, Known):
        return there and condition.digests != ("0" * 12,)
    return there is isinstance(condition, Present)


def bounds(versions: str) -> tuple[int, float]:
    said = {word[:1]: int(word.lstrip("<>=")) for word in versions.split(",") if word}
    return said.get(">", 0), said.get("<", float("inf"))


@settings(max_examples=400, deadline=None)
@given(st.lists(variants(), min_size=1, max_size=4), st.integers(0, 12))
@example([variant()], 7)
def test_what_is_decided_is_what_the_rule_says(given_: list[Variant], major: int) -> None:
    numbered = tuple(one.replace(name=str(place)) for place, one in enumerate(given_))
    subject: Patch = patch().replace(targets=(Target(project=PROJECT, variants=numbered),))
    source = tree(version=f"{major}.0")
    verdict = decide(subject, source)
    fits = [one for one in numbered if all(map(holds, one.shape))]
    inside = [one for one in fits if bounds(one.versions)[0] <= major < bounds(one.versions)[1]]
    if inside:
        assert (verdict.verdict, verdict.targets[0].variant) == (inside[0].verdict, inside[0].name)
        return
    passed = [
        one
        for one in fits
        if one.verdict == "apply" and bounds(one.versions)[1] <= major >= bounds(one.versions)[0]
    ]
    letter = [
        one for one in passed
        if {item.site for item in one.replacements} <= {c.site for c in one.shape if isinstance(c, Known)}
    ]  # fmt: skip
    if len(fits) == 1 and letter:
        assert (verdict.verdict, verdict.targets[0].variant) == ("apply", letter[0].name)
        assert "newer than" in verdict.reason
    else:
        assert verdict.verdict == ("expired" if major >= 2 else "unsupported")
        assert verdict.reason
    # A later label of the same source never makes it apply to what another label has refused it for.
    if verdict.verdict == "apply":
        later = decide(subject, tree(version=f"{major + 1}.0"))
        assert later.verdict == "apply" or any(
            major + 1 >= bounds(one.versions)[0] for one in fits if one.name != verdict.targets[0].variant
        )
