"""What an installation is to a defect: by its source, and by the patch that fixes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from audit_cases import ODD, RIGHT, WRONG, a_defect

from overlay.defect import switched
from overlay.desk.audit.audit import Audit, defect_text, screen
from overlay.source import conditions
from overlay.source.known_defects import DEFECT_STATES

#: A defect that leaves its sources to the patch, and one that has its own and a patch that mends less.
OF_THE_PATCH = {"patch": "lib.fix", "sites": (), "way_out": ""}
MENDED = {"patch": "lib.fix"}


@pytest.mark.parametrize(
    ("changes", "source", "state"),
    [
        ({}, WRONG, "open"),
        ({}, RIGHT, "not-needed"),
        ({}, ODD, "unknown-source"),
        (OF_THE_PATCH, WRONG, "mended"),
        (OF_THE_PATCH, RIGHT, "not-needed"),
        (OF_THE_PATCH, ODD, "unknown-source"),
        # One variant of a patch may have a defect that another has not.
        ({**OF_THE_PATCH, "only": ("1",)}, WRONG, "mended"),
        ({**OF_THE_PATCH, "only": ("other",)}, WRONG, "not-needed"),
        (MENDED, WRONG, "mended"),
        (MENDED, RIGHT, "not-needed"),
    ],
)
def test_the_source_decides_and_not_the_version(
    changes: dict[str, Any], source: str, state: str, audited: Callable[..., Audit]
) -> None:
    (finding,) = audited(source, changes=changes).findings
    assert (finding.state, finding.version, finding.site) == (state, "1.0", "lib.core:f")
    ways_out = {
        "open": "(untested) fast=False; or lib 2.0 has the fix",
        "unknown-source": "lib 2.0 has the fix",
    }
    assert finding.way_out == ways_out.get(state, "")


@pytest.mark.parametrize(
    "options",
    [{"selection": "none"}, {"opt_in": True}, {"selection": None, "opt_in": True}],
)
def test_a_patch_that_is_not_selected_mends_nothing(
    options: dict[str, Any], audited: Callable[..., Audit]
) -> None:
    audit = audited(changes=OF_THE_PATCH, **options)
    (finding,) = audit.findings
    assert (finding.state, finding.way_out) == ("open", "OVERLAY_PATCHES=all,lib.fix")
    assert audit.concerning() == [finding]


def test_harms_filter_and_what_is_not_installed_is_no_finding(audited: Callable[..., Audit]) -> None:
    audit = audited(harms=("hang",))
    assert audit.findings == ()
    assert "\n0 patched, 0 not patched\n" in screen(audit)
    assert audited(harms=("silent-wrong",)).findings


def test_all_about_one(audited: Callable[..., Audit]) -> None:
    audit = audited()
    said = defect_text(audit.defects["lib.f-adds"], audit.findings[0])
    assert "read in the source; no run has shown it" in said
    assert DEFECT_STATES["open"] in said


def test_a_tree_that_cannot_be_read_is_unknown_and_never_an_error(audited: Callable[..., Audit]) -> None:
    (finding,) = audited("def f(:\n").findings
    assert finding.state == "unknown-source"
    assert "does not parse" in finding.reason


def test_a_reason_that_alternatives_share_is_said_once() -> None:
    shared, one, other_one = switched("shared"), switched("one"), switched("other")
    defect = a_defect().replace(when=((shared, one), (shared, other_one)))
    said = conditions.answer(defect, lambda _: [])
    assert said == conditions.Answer(
        word="untold", why="shared is not known and one is not known and other is not known"
    )
