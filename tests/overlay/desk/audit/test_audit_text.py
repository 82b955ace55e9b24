"""What an audit shows in 80 columns: what is not patched with what to do, and the rest by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from audit_cases import DIALECT, a_defect

from overlay.desk.audit.audit import Audit, screen
from overlay.desk.audit.job_settings import JobSettings
from overlay.source.conditions import Answer
from overlay.source.known_defects import Finding
from overlay.verdict import Plan

HARMS = ("silent-wrong", "crash")


def an_audit(
    folder: Path, counts: dict[str, int], words: dict[str, str] | None = None, **of_all: Any
) -> Audit:
    """Return one with some findings of each state; `words` says what settings say of a state."""
    defect = a_defect()
    of_all = {"way_out": "fast=False; or lib 2.0 has the fix", **of_all}
    findings = [
        Finding(defect=f"lib.{state}-{index}", project="lib", version="1.0", harm=harm, state=state, **of_all)
        for harm in HARMS
        for state, count in counts.items()
        for index in range(count)
        if HARMS[index % 2] == harm
    ]
    answers = {
        one.defect: Answer(word=words[one.state], why="ranks is 2") for one in findings if words is not None
    }
    settings = JobSettings(file="run.sh", dialect=DIALECT, values={"ranks": 2, "nonesuch": 1})
    return Audit(
        plan=Plan(site="/somewhere", selection=(), verdicts=()),
        defects={one.defect: defect.replace(id=one.defect) for one in findings},
        findings=tuple(findings),
        answers=answers,
        settings=settings if words is not None else None,
        installed=("lib 1.0",),
    )


def test_each_that_is_not_patched_has_a_line_with_what_to_do(tmp_path: Path) -> None:
    shown = screen(
        an_audit(tmp_path, {"open": 3, "mended": 2, "unknown-source": 1, "not-needed": 4})
    ).splitlines()
    assert shown[1] == "2 patched, 3 not patched, 1 not known for this source, 4 not in this release"
    start = shown.index("NOT PATCHED (3)")
    assert shown[start + 2 : start + 4] == ["  lib.open-0 -> fast=False", "  lib.open-2 -> fast=False"]
    assert shown[start + 4].startswith("crash: ")
    start = shown.index("PATCHED (2)")
    assert shown[start + 1 : start + 3] == ["  silent-wrong: lib.mended-0", "  crash: lib.mended-1"]
    assert "  silent-wrong: lib.unknown-source-0" in shown
    assert "lib.not-needed" not in "\n".join(shown)
    assert shown[0] == "lib 1.0 in /somewhere"


def test_all_is_named_in_80_columns(tmp_path: Path) -> None:
    reason = "lib.fix is unknown-source: " + "odd " * 40
    shown = screen(an_audit(tmp_path, {"open": 60, "mended": 200}, way_out="", reason=reason))
    assert max(map(len, shown.splitlines())) <= 80
    words = shown.replace(",", " ").replace(":", " ").split()
    counts = {"open": 60, "mended": 200}
    assert {f"lib.{state}-{index}" for state, count in counts.items() for index in range(count)} <= {*words}
    assert words.count("odd") == 40 * 60  # where nothing can be done it says why, and all of it


def test_what_only_its_id_selects_says_how(tmp_path: Path) -> None:
    audit = an_audit(tmp_path, {"open": 1}, patch="lib.fix", way_out="OVERLAY_PATCHES=all,lib.fix")
    assert "  lib.open-0 -> select lib.fix\n" in screen(audit)
    assert "select A and B beside the default patches: OVERLAY_PATCHES=all,A,B" in screen(audit)


def test_settings_part_what_is_met_from_the_rest(tmp_path: Path) -> None:
    words = {"open": "met", "unknown-source": "untold", "mended": "not-met"}
    counts = {"open": 1, "unknown-source": 1, "mended": 3}
    # The setting that decides stands beside what nobody mends.
    shown = screen(an_audit(tmp_path, counts, {**words, "open": "not-met"}))
    assert "NOT PATCHED, NOT HIT BY THESE SETTINGS (1)\n  ranks is 2: lib.open-0\n" in shown
    shown = screen(an_audit(tmp_path, counts, words))
    assert "NOT PATCHED, HIT BY THESE SETTINGS (1)\nsilent-wrong" in shown
    assert "  lib.open-0: ranks is 2 -> fast=False\n" in shown
    assert "  lib.unknown-source-0: ranks is 2: not known for this source\n" in shown
    assert "\nPATCHED, NOT HIT BY THESE SETTINGS (3)\n" in shown
    assert "lib.mended" not in shown
    assert "UNKNOWN SETTINGS (1)\n  nonesuch\n" in shown
