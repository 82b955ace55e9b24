"""slime's real actor takes a step of training on gloo ranks: alone it fails as is claimed, with overlay not.

All cases of a release and a mode come from one process, which imports once and forks the ranks. By day a case
is run on an older release only if that does something else alone, and no hang is waited for.
"""

from __future__ import annotations

import os

import pytest
from checks import SEED
from listed_sources import Listed
from slime_step import RIGHT, cases_of, run, unlike_claimed
from slime_step_cases import CASES, NOT_SHOWN, Case

from overlay.source.registry import load_patches
from sources.slime_images import RELEASES

pytestmark = [pytest.mark.distributed, pytest.mark.real]


def asked(release: str) -> list[Case]:
    """Return the cases of a release: by day those that no newer one does the same alone."""
    newer = RELEASES[RELEASES.index(release) + 1 :] if os.environ.get("TESTS_ONCE") else ()
    return [
        case
        for case in cases_of(release)
        if not any(case.alone.get(other) == case.alone[release] for other in newer)
    ]


@pytest.mark.parametrize("release", RELEASES)
def test_with_overlay_each_step_is_right_and_alone_it_comes_to_what_is_claimed(
    listed: Listed, release: str
) -> None:
    """Where it is right alone, micro-batches are the same. The first rank has said what affects the job."""
    image, cases = listed(f"slime image {release}"), asked(release)
    ours = run(release, image, "overlay", cases, int(SEED))
    assert {name: row for name, row in ours.items() if row.verdict != RIGHT} == {}, SEED
    for name, row in ours.items():
        whitened = {"--normalize-advantages", "--context-parallel-size"} <= {*row.case.settings}
        assert ("slime.whitening-by-slice" in row.met) is whitened, name
    ending = [case for case in cases if not (os.environ.get("TESTS_ONCE") and "hangs" in case.alone[release])]
    plain = run(release, image, "plain", ending, int(SEED))
    assert unlike_claimed(release, plain, ours) == [], SEED


def test_every_patch_for_slime_has_a_case() -> None:
    """Or a reason for why no step can show it: `Case.shows` and `NOT_SHOWN` say so."""
    shown = {patch for case in CASES for patch in case.shows}
    assert shown.isdisjoint(NOT_SHOWN)
    assert shown | set(NOT_SHOWN) == {name for name in load_patches() if name.startswith("slime.")}
