"""What an installation is to a defect: by its source, and by the patch that mends it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from audit_cases import ODD, RIGHT, WRONG, a_defect, a_patch, write

from overlay.auditing import audit as auditing
from overlay.auditing.audit import make_audit
from overlay.auditing.entries import text
from overlay.auditing.judge import STATES
from overlay.auditing.screen import screen
from overlay.enabling.engine import Engine

if TYPE_CHECKING:
    from pathlib import Path

    from overlay.auditing.audit import Audit
    from overlay.defect import Defect
    from overlay.patch import Patch


def audited(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    defect: Defect,
    patch: Patch,
    selection: str = "all",
    **options: Any,
) -> Audit:
    monkeypatch.setattr(auditing, "load_defects", lambda _: {defect.id: defect})
    engine, tree = Engine(lambda: {patch.id: patch}), write(folder, options.pop("source", WRONG))
    return make_audit(engine, engine.plan(selection, tree), tree, **options)


@pytest.mark.parametrize(("source", "state"), [(WRONG, "open"), (RIGHT, "fixed"), (ODD, "unknown")])
def test_the_source_decides_and_not_the_version(
    source: str, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (finding,) = audited(monkeypatch, tmp_path, a_defect(tmp_path), a_patch(tmp_path), source=source).findings
    assert (finding.state, finding.version) == (state, "1.0")
    assert finding.site == "lib.core:f"
    assert (
        finding.way_out
        == {
            "open": "fast=False; or lib 2.0 has the fix",
            "fixed": "",
            "unknown": "lib 2.0 has the fix",
        }[state]
    )


def of_the_patch(folder: Path) -> Defect:
    return a_defect(folder).replace(patch="lib.fix", variants=(), fixed="2.0", way_out="")


@pytest.mark.parametrize(("source", "state"), [(WRONG, "mended"), (RIGHT, "fixed"), (ODD, "unknown")])
def test_what_a_patch_mends_is_where_the_patch_says(
    source: str, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch = a_patch(tmp_path)
    (finding,) = audited(monkeypatch, tmp_path, of_the_patch(tmp_path), patch, source=source).findings
    assert finding.state == state


def test_a_patch_that_is_not_selected_mends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for patch in (a_patch(tmp_path), a_patch(tmp_path, opt_in=True)):
        selection = "none" if not patch.opt_in else "lib.fix"
        selected = () if patch.opt_in else None
        audit = audited(
            monkeypatch, tmp_path, of_the_patch(tmp_path), patch, selection=selection, selected=selected
        )
        (finding,) = audit.findings
        assert (finding.state, finding.way_out) == ("open", "OVERLAY_PATCHES=all,lib.fix")
        assert audit.concerning() == [finding]


def test_one_variant_of_a_patch_may_have_a_defect_that_another_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for only, state in ((("1",), "mended"), (("other",), "absent")):
        defect = of_the_patch(tmp_path).replace(only=only)
        (finding,) = audited(monkeypatch, tmp_path, defect, a_patch(tmp_path)).findings
        assert finding.state == state


def test_a_patch_may_mend_less_than_its_sources_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    defect = a_defect(tmp_path).replace(patch="lib.fix")
    assert audited(monkeypatch, tmp_path, defect, a_patch(tmp_path)).findings[0].state == "mended"
    assert (
        audited(monkeypatch, tmp_path, defect, a_patch(tmp_path), source=RIGHT).findings[0].state == "fixed"
    )


def test_harms_filter_and_what_is_not_installed_is_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = audited(monkeypatch, tmp_path, a_defect(tmp_path), a_patch(tmp_path), harms=("hang",))
    assert audit.findings == ()
    assert screen(audit) == "no project that a known defect is of"
    assert audited(
        monkeypatch, tmp_path, a_defect(tmp_path), a_patch(tmp_path), harms=("silent-wrong",)
    ).findings


def test_all_about_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    audit = audited(monkeypatch, tmp_path, a_defect(tmp_path), a_patch(tmp_path))
    said = text(audit.defects["lib.f-adds"], audit.findings[0])
    assert "read in the source; no run has shown it" in said
    assert STATES["open"] in said


def test_a_tree_that_cannot_be_read_is_unknown_and_never_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = audited(monkeypatch, tmp_path, a_defect(tmp_path), a_patch(tmp_path), source="def f(:\n")
    assert audit.findings[0].state == "unknown"
    assert "does not parse" in audit.findings[0].reason
