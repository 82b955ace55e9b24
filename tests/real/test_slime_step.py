"""slime's real actor takes a step of training on gloo ranks: alone it fails as is claimed, with overlay not.

All cases of a release and a mode come from one process, which imports once and forks the ranks. By day a case
is run on an older release only if that does something else alone, and no hang is waited for.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from checks import SEED
from slime_step import RIGHT, Row, cases_of, run
from slime_step_cases import CASES, NOT_SHOWN

from overlay.source.registry import load_patches
from sources.slime_images import RELEASES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from slime_step_cases import Case

pytestmark = [pytest.mark.distributed, pytest.mark.real]


#: By day, the newest release stands for those that do the same alone.
LEFT = {
    (release, case.name)
    for index, release in enumerate(RELEASES)
    for case in cases_of(release)
    if any(case.alone.get(newer) == case.alone[release] for newer in RELEASES[index + 1 :])
}
EACH = [(release, case) for release in RELEASES for case in cases_of(release)]
RIGHT_ALONE = [(release, case) for release, case in EACH if case.alone[release] == (RIGHT,)]
#: In each mode; what hangs alone is waited for at night.
LEFT_IN = {
    "overlay": LEFT,
    "plain": LEFT | {(release, case.name) for release, case in EACH if "hangs" in case.alone[release]},
}


def on_each(mode: str, cases: Sequence[tuple[str, Case]] = EACH) -> pytest.MarkDecorator:
    """Run a test for each release and case, and leave some of them to the nightly run."""
    left = pytest.mark.nightly("another release does the same alone, or it hangs", release=RELEASES)
    return pytest.mark.parametrize(
        ("release", "case"),
        [
            pytest.param(release, case.name, marks=[left] if (release, case.name) in LEFT_IN[mode] else [])
            for release, case in cases
        ],
    )


@pytest.fixture(scope="session")
def runs() -> dict[tuple[str, str], dict[str, Row]]:
    return {}


@pytest.fixture
def row(
    listed: Callable[[str], Path], runs: dict[tuple[str, str], dict[str, Row]]
) -> Callable[[str, str, str], Row]:
    """Return the function that gets what a case came to on a release in a mode; each pair runs once."""

    def get(release: str, mode: str, case: str) -> Row:
        image = listed(f"slime image {release}")
        if (release, mode) not in runs:
            wanted = cases_of(release)
            if os.environ.get("TESTS_ONCE"):
                wanted = [one for one in wanted if (release, one.name) not in LEFT_IN[mode]]
            runs[release, mode] = run(image, "plain" if mode == "plain" else "overlay", wanted, int(SEED))
        return runs[release, mode][case]

    return get


@on_each("overlay")
def test_with_overlay_the_step_is_right(row: Callable[[str, str, str], Row], release: str, case: str) -> None:
    found = row(release, "overlay", case)
    assert found.verdict == RIGHT, (SEED, found)


@on_each("plain")
def test_alone_it_comes_to_what_is_claimed(
    row: Callable[[str, str, str], Row], release: str, case: str
) -> None:
    found = row(release, "plain", case)
    assert found.verdict.startswith(found.case.alone[release]), (SEED, found)


@on_each("plain", RIGHT_ALONE)
def test_where_it_is_right_alone_micro_batches_are_the_same(
    row: Callable[[str, str, str], Row], release: str, case: str
) -> None:
    assert row(release, "overlay", case).micro_batches == row(release, "plain", case).micro_batches


def test_every_patch_for_slime_has_a_case() -> None:
    """Or a reason for why no step can show it: `Case.shows` and `NOT_SHOWN` say so."""
    shown = {patch for case in CASES for patch in case.shows}
    assert shown.isdisjoint(NOT_SHOWN)
    assert shown | set(NOT_SHOWN) == {name for name in load_patches() if name.startswith("slime.")}
