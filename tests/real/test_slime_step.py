"""slime's real actor takes a step of training on gloo ranks: alone it fails as is claimed, with overlay not.

All cases of a release and a mode come from one process, which imports once and forks the ranks.
"""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

import pytest
from slime_step import RIGHT, Row, cases_of, run
from slime_step_cases import CASES, NOT_SHOWN

from overlay.catalogue.registry import load_patches
from sources.slime_images import RELEASES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.distributed, pytest.mark.real]

SEED = int(os.environ.setdefault("OVERLAY_TEST_SEED", str(secrets.randbelow(2**31))))

#: What hangs alone is left to `scripts/demo slime`: a hang lasts for as long as it is waited for.
ALONE = [
    (release, case.name)
    for release in RELEASES
    for case in cases_of(release)
    if "hangs" not in case.alone[release]
]
RIGHT_ALONE = [
    (release, case.name)
    for release in RELEASES
    for case in cases_of(release)
    if case.alone[release] == (RIGHT,)
]
WITH_OVERLAY = [(release, case.name) for release in RELEASES for case in cases_of(release)]


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
            wanted = {name for of, name in (ALONE if mode == "plain" else WITH_OVERLAY) if of == release}
            runs[release, mode] = run(image, mode, [one for one in CASES if one.name in wanted], SEED)
        return runs[release, mode][case]

    return get


@pytest.mark.parametrize(("release", "case"), WITH_OVERLAY)
def test_with_overlay_the_step_is_right(row: Callable[[str, str, str], Row], release: str, case: str) -> None:
    found = row(release, "overlay", case)
    assert found.verdict == RIGHT, (SEED, found)


@pytest.mark.parametrize(("release", "case"), ALONE)
def test_alone_it_comes_to_what_is_claimed(
    row: Callable[[str, str, str], Row], release: str, case: str
) -> None:
    found = row(release, "plain", case)
    assert found.verdict.startswith(found.case.alone[release]), (SEED, found)


@pytest.mark.parametrize(("release", "case"), RIGHT_ALONE)
def test_where_it_is_right_alone_micro_batches_are_the_same(
    row: Callable[[str, str, str], Row], release: str, case: str
) -> None:
    assert row(release, "overlay", case).micro_batches == row(release, "plain", case).micro_batches


def test_every_patch_for_slime_has_a_case() -> None:
    """Or a reason for why no step can show it: `Case.shows` and `NOT_SHOWN` say so."""
    shown = {patch for case in CASES for patch in case.shows}
    assert shown.isdisjoint(NOT_SHOWN)
    assert shown | set(NOT_SHOWN) == {name for name in load_patches() if name.startswith("slime.")}
