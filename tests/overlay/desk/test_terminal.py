"""What people and programs see: tables, colours, progress, and JSON that a schema describes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from command_line import clean, overlay, read, unknown_verl
from output_schema import SCHEMA, check

from overlay import ledger, patch, verdict
from overlay.desk import progress as _progress
from overlay.desk import tables
from overlay.desk.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# -- tables ----------------------------------------------------------------------------------------


def assert_fits(text: str) -> None:
    assert [line for line in text.splitlines() if len(line) > 80] == []


def test_a_plan_fits_whatever_it_says() -> None:
    name, reason = f"{'a' * 20}/{'b' * 9}.{'c' * 12}-{'d' * 9}-{'e' * 7}", "it is new here, and " * 9
    verdicts = tuple(
        verdict.Verdict(patch=f"{name}-{at}", revision=1, verdict=said, reason=reason)
        for at, said in enumerate(verdict.VERDICTS)
    )
    plan = verdict.Plan(site="", selection=(), verdicts=verdicts)
    text = tables.plan(plan, findings=False)
    assert_fits(text)
    counted = ("not-selected", "not-installed")
    for at, said in enumerate(verdict.VERDICTS):
        assert (f"{name}-{at}  {said}" in text) == (said not in counted)
    assert "".join(reason.split()) in "".join(text.split())


def a_status(*patches: ledger.PatchStatus, enabled: bool = True) -> ledger.Status:
    return ledger.Status(
        enabled=enabled, strict=False, version="0.1.0", python="3.11.7", pid=1, selection=(), patches=patches,
        pinned="/root/overlay.lock",
    )  # fmt: skip


def test_a_status_that_is_printed_reads_like_the_table() -> None:
    patches = [
        ledger.PatchStatus(patch=f"verl.fix-{number}", revision=2, state="armed") for number in range(9)
    ]
    absent = verdict.Verdict(patch="slime.it", revision=1, verdict="not-installed")
    gone = ledger.PatchStatus(
        patch="slime.it", revision=1, state="skipped", reason="slime is not installed", verdict=absent
    )
    status = a_status(*patches, gone)
    text = str(status)
    assert_fits(text)
    lines = text.splitlines()
    assert lines[0] == "overlay 0.1.0 on Python 3.11.7, not strict: 9 armed, 1 skipped"
    assert lines[2] == "verl.fix-0@2  armed  waits for its modules to be imported"
    assert lines[-2:] == ["1 patch left out: slime is not installed", "pinned to /root/overlay.lock"]
    assert len(text) < len(repr(status))
    assert repr(status).startswith("Status(enabled=True")
    assert str(a_status(enabled=False)).startswith("overlay 0.1.0 on Python 3.11.7, not enabled\n(none)\n")


# -- colours ---------------------------------------------------------------------------------------


def on_a_terminal(code: str, **environ: str) -> str:
    """Return what a program prints to a terminal."""
    kept = {
        name: text for name, text in clean().items() if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")
    }
    mine, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=theirs, stdout=theirs, stderr=theirs,
        env={**kept, "TERM": "xterm-256color", **environ},
    )  # fmt: skip
    os.close(theirs)
    text = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while part := os.read(mine, 1 << 16):
            text += part
    os.close(mine)
    assert process.wait(timeout=60) == 0, text
    return text.decode().replace("\r\n", "\n")


LIST = (
    "from overlay.desk import progress; progress.PATIENCE = 1e6; "  # on a machine that is busy
    "from overlay.cli import main; main(['list'])"
)


def test_colours_are_for_terminals() -> None:
    piped = overlay("list").stdout
    assert "\x1b" not in piped
    text = on_a_terminal(LIST)
    assert "\x1b[32mapply" in text
    assert re.sub(r"\x1b\[[0-9;]*m", "", text) == piped
    for wish in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert on_a_terminal(LIST, **wish) == piped, wish
    assert on_a_terminal(LIST, NO_COLOR="") == text  # as no-color.org has it


# -- progress --------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    """A terminal, which can go."""

    error: Exception | None = None

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self.error is not None:
            raise self.error
        return super().write(text)


def shown(text: str) -> str:
    """Return what a terminal shows of one line after all of it."""
    line = ""
    for part in text.split("\r"):
        line = part + line[len(part) :]
    return line.rstrip()


@pytest.mark.parametrize(
    ("stream", "patience", "said"),
    [
        (Terminal(), 0.0, r"^\roverlay: \[#{10}\.{10}\] 3/6 \d+ s lib\.x+$"),
        (Terminal(), 3600.0, "^$"),  # what is quick, however slow the machine is
        (io.StringIO(), 0.0, "^$"),
    ],
)
def test_a_bar_comes_after_a_while_and_goes(
    stream: io.StringIO, patience: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_progress, "PATIENCE", patience)
    progress = Progress(stream)
    progress(3, 6, f"lib.{'x' * 100}")
    assert re.search(said, stream.getvalue())
    assert len(stream.getvalue()) in (0, 80)
    progress.close()
    assert shown(stream.getvalue()) == ""


@pytest.mark.parametrize("error", [OSError("gone"), ValueError("closed")])
def test_a_terminal_that_is_gone_stops_nobody(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_progress, "PATIENCE", 0.0)
    stream = Terminal()
    stream.error = error
    progress = Progress(stream)
    progress(1, 2, "lib.x")
    progress.close()


def test_a_slow_command_shows_what_it_is_at_and_then_its_table_alone(tmp_path: Path) -> None:
    code = (
        "import os, sys, time; from overlay import cli; from overlay.desk import progress; "
        "from overlay.source import decide as deciding; decide = deciding.decide; progress.PATIENCE = 0.05; "
        "deciding.decide = lambda *given: (time.sleep(0.02), decide(*given))[1]; "
        f"os.chdir({str(tmp_path)!r}); sys.exit(cli.main(['plan', '--site', '.']) != 2)"
    )
    first, _, others = on_a_terminal(code, NO_COLOR="1").partition("\n")
    assert re.search(r"overlay: \[#+\.+\] \d+/\d+ \d s megatron\.\S+", first)
    assert shown(first) == "(none)"
    assert "[#" not in others


# -- JSON ------------------------------------------------------------------------------------------


def test_what_is_printed_is_what_the_schema_says(tmp_path: Path) -> None:
    jsonschema: Any = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert read("schema") == SCHEMA
    site = ["--site", str(unknown_verl(tmp_path))]
    check(read(), "overlay")
    script = tmp_path / "run.sh"
    script.write_text("algorithm.adv_estimator=grpo\n")
    commands: list[Sequence[str]] = [
        ["list"], ["plan"], ["plan", *site], ["audit"], ["audit", *site], ["doctor"], ["packs"],
        ["lock", "--file", str(tmp_path / "overlay.lock")],
        ["explain", "verl.fast-partitioner", *site], ["audit", *site, "--settings", str(script)],
    ]  # fmt: skip
    for words in commands:
        done = overlay(*words, "--json")
        assert done.returncode in (0, 1), done.stderr
        check(json.loads(done.stdout), words[0])
    check(read("audit", "--explain", "verl.per-token-loss-untold", *site, code=1), "audit explain")
    # These have their own tests.
    described = {words[0] for words in commands} | {"new"}
    known = overlay("none").stderr.partition("there are: ")[2].strip().split(", ")
    assert described | {"prove", "report", "run", "schema", "suite"} == {
        name for name in known if not name.startswith("-")
    }


def test_the_schema_says_what_fields_are_and_which_words_they_have() -> None:
    defs = SCHEMA["$defs"]
    fields = defs["Verdict"]["properties"]
    assert (
        list(fields) == defs["Verdict"]["required"] == ["patch", "revision", "verdict", "reason", "targets"]
    )
    assert fields["verdict"]["enum"] == list(verdict.VERDICTS)
    assert fields["targets"] == {"type": "array", "items": {"$ref": "#/$defs/TargetVerdict"}}
    assert defs["PatchStatus"]["properties"]["verdict"] == {
        "description": "`None` while no module of the patch has been imported.",
        "anyOf": [{"$ref": "#/$defs/Verdict"}, {"type": "null"}],
    }
    assert defs["suite run"]["properties"]["not_run"] == {"type": "array", "items": {"type": "string"}}
    assert "settings" not in defs["audit"]["required"]


def test_a_condition_says_which_it_is() -> None:
    for kind in (patch.Present, patch.Absent):
        assert kind(site="m:f").to_dict() == {"expects": kind.__name__.lower(), "site": "m:f"}
    calls = patch.variant("1", patch.Calls(site="m:f", callee="g")).to_dict()
    assert calls["facts"] == [{"expects": "calls", "site": "m:f", "callee": "g", "last": False}]
