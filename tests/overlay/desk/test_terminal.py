"""What people and programs see: tables of 80 columns, and facts as data."""

from __future__ import annotations

from overlay import ledger, patch, verdict
from overlay.desk.commands import plan_table


def assert_fits(text: str) -> None:
    assert [line for line in text.splitlines() if len(line) > 80] == []


def test_a_plan_fits_whatever_it_says() -> None:
    name, reason = f"{'a' * 20}/{'b' * 9}.{'c' * 12}-{'d' * 9}-{'e' * 7}", "it is new here, and " * 9
    verdicts = tuple(
        verdict.Verdict(patch=f"{name}-{at}", verdict=said, reason=reason)
        for at, said in enumerate(verdict.VERDICTS)
    )
    text = plan_table(verdict.Plan(site="", selection=(), verdicts=verdicts))
    assert_fits(text)
    counted = ("not-selected", "not-installed")
    for at, said in enumerate(verdict.VERDICTS):
        assert (f"{name}-{at}  {said}" in text) == (said not in counted)
    assert "".join(reason.split()) in "".join(text.split())


def test_a_status_that_is_printed_reads_like_the_table() -> None:
    patches = [ledger.PatchStatus(patch=f"verl.fix-{number}", state="waiting") for number in range(9)]
    absent = verdict.Verdict(patch="slime.it", verdict="not-installed")
    gone = ledger.PatchStatus(
        patch="slime.it", state="skipped", reason="slime is not installed", verdict=absent
    )
    status = ledger.Status(
        enabled=True, strict=False, version="0.1.0", python="3.11.7", pid=1, selection=(),
        patches=(*patches, gone), pinned="/root/overlay.lock",
    )  # fmt: skip
    text = str(status)
    assert_fits(text)
    lines = text.splitlines()
    assert lines[0] == "overlay 0.1.0 on Python 3.11.7, not strict: 9 waiting, 1 skipped"
    assert lines[2] == "verl.fix-0  waiting  waits for its modules to be imported"
    assert lines[-2:] == ["left out, slime is not installed: 1", "pinned to /root/overlay.lock"]
    assert repr(status).startswith("Status(enabled=True")
    off = str(status.replace(enabled=False, patches=()))
    assert off.startswith("overlay 0.1.0 on Python 3.11.7, not enabled\n(none)\n")


def test_a_condition_says_which_it_is() -> None:
    for kind in (patch.Present, patch.Absent):
        assert kind(site="m:f").to_dict() == {"expects": kind.__name__.lower(), "site": "m:f"}
    calls = patch.variant("1", patch.Calls(site="m:f", callee="g"), "m:g").to_dict()
    assert calls["facts"] == [{"expects": "calls", "site": "m:f", "callee": "g", "last": False}]
