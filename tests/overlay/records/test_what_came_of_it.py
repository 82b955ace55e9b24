"""The end of a process: its line, its ledger on disk, and the whole job that is read from there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from command_line import clean, overlay, read

from overlay.desk.prove.rows import text_of
from overlay.desk.report import job
from overlay.effect import Effect
from overlay.ledger import PatchStatus
from overlay.records.run import lines
from overlay.runtime.engine import Engine
from overlay.source.source import Tree
from overlay.source.table import TABLE_FILE, Row

#: A pack of one patch, which counts, for an upstream of one function.
PATCH = """
from overlay.patch import Patch, Project, one_target, replaced, variant


def make(original, module):
    from {pack}.up.doubled.effect import EFFECT

    def double(x):
        if x < 0:
            return original(x)
        EFFECT.calls += 1
        EFFECT.changed += x > 9
        EFFECT.largest = max(EFFECT.largest, x)
        return 2 * x

    return double


UP = Project(name="up", distributions=("up",), marker="up", read_version=lambda read: "1.0")
PATCH = Patch(
    id="up.doubled", summary="Double", why="It adds.", upstream=("a/b#1",),
    targets=one_target(UP, variant("1", replaced("up:double", make))),
)
"""
EFFECT = """
from overlay.effect import Figure, effect

EFFECT = effect(
    __name__, "call", Figure(name="largest", says="the largest", combine="max"), then="up to {largest}"
)
"""
RUN = """
import os, sys
import overlay, overlay.patches
overlay.patches.__path__.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "patches"))
overlay.enable(["up.double*"])  # a glob loads patches at once: nobody watches for this upstream
if sys.argv[1] != "unused":
    import up
    for number in map(int, sys.argv[1].split(",")) if sys.argv[1] else ():
        up.double(number)
exec(sys.argv[2]) if len(sys.argv) > 2 else None
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "up.py").write_text("def double(x):\n    return x + x + 1\n")
    folder = tmp_path / "patches/up/doubled"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("")
    (folder / "__init__.py").write_text(PATCH.format(pack="overlay.patches"))
    (folder / "effect.py").write_text(EFFECT)
    sites = {"up:double": Tree(str(tmp_path)).digest("up:double")}
    row = Row(patch="up.doubled", target="up", verdict="apply", variant="1", sites=sites)
    (folder.parent / TABLE_FILE).write_text(text_of({}, [row]))
    (tmp_path / "run.py").write_text(RUN)
    return tmp_path / "run.py"


def start(program: Path, *words: str, cwd: Path | None = None, **variables: Any) -> subprocess.Popen[str]:
    environ = clean()
    for name in ("RANK", "WORLD_SIZE"):
        environ.pop(name, None)
    return subprocess.Popen(
        [sys.executable, str(program), *words],
        env={**environ, **variables},
        cwd=cwd,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def run(program: Path, *words: str, **variables: Any) -> list[str]:
    """Return what a process said at its end."""
    process = start(program, *words, **variables)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    words = ("in this process:", "on rank", "ledger")
    return [line for line in said.splitlines() if any(word in line for word in words)]


CHANGED = "up.doubled changed 2 of 3 calls; up to 11"
#: A second import finds a source that the patch does not know.
ANOTHER_SOURCE = """
with open("up.py", "w") as file:
    file.write("def double(x):\\n    return 0\\n")
del sys.modules["up"]
import up
"""
IDLE = "applied, but had nothing to do: up.doubled"


@pytest.mark.parametrize(
    ("words", "rank", "line"),
    [
        (("5,10,11,-1",), "", f"in this process: {CHANGED}"),
        # What other ranks had to do is not known here, so nothing is said of the run.
        (("5,10,11,-1",), "0", f"on rank 0: {CHANGED}"),
        (("5,10,11,-1",), "1", ""),
        (("-1",), "", f"in this process: {IDLE}"),
        (("-1",), "0", f"on rank 0: {IDLE}"),
        (("3",), "", "in this process: up.doubled looked at 1 call and changed nothing"),
        # What was counted before it was disabled was done, and what never was in place had no chance.
        (("5,10,11,-1", "overlay.disable()"), "", f"in this process: {CHANGED}"),
        (("unused", "overlay.disable()"), "", ""),
        # Also where other patches are enabled after it, and not by a fork, which did not do it.
        (
            ("5,10,11,-1", "overlay.disable(); overlay.enable('none'); overlay.status()"),
            "",
            f"in this process: {CHANGED}",
        ),
        (
            ("5,10,11,-1", "overlay.disable()\npid = os.fork()\nif pid: os.waitpid(pid, 0)"),
            "",
            f"in this process: {CHANGED}",
        ),
        # Also while the next session waits for the module, and if the patch could not stay.
        (
            ("5,10,11,-1", "overlay.disable(); del sys.modules['up']; overlay.enable('up.double*')"),
            "",
            f"in this process: {CHANGED}",
        ),
        (("5,10,11,-1", ANOTHER_SOURCE), "", f"in this process: {CHANGED}"),
        # The child of a fork says what it did itself.
        (
            ("", "pid = os.fork()\nif pid: os.waitpid(pid, 0); os._exit(0)\nup.double(12)"),
            "",
            "in this process: up.doubled changed 1 of 1 call; up to 12",
        ),
        (
            ("12", "pid = os.fork()\nif pid: os.waitpid(pid, 0)"),
            "",
            "in this process: up.doubled changed 1 of 1 call; up to 12",
        ),
    ],
)
def test_the_first_rank_says_what_was_changed(
    program: Path, words: tuple[str, ...], rank: str, line: str
) -> None:
    assert run(program, *words, RANK=rank, cwd=program.parent) == ([f"overlay: {line}"] if line else [])


def test_a_patch_that_is_taken_out_was_not_in_vain(program: Path) -> None:
    process = start(program, "5,10,11,-1", ANOTHER_SOURCE, cwd=program.parent)
    (line,) = [line for line in process.communicate(timeout=60)[1].splitlines() if "NOT applied" in line]
    assert line.startswith("overlay: NOT applied up.doubled to up 1.0: unknown-source: ")
    assert line.endswith(f"; until then it {CHANGED.partition(' ')[2]}")


OFF, TAKEN_OUT = "overlay.disable()", "disabled: 1 patch taken out"
AGREED = "from overlay.runtime.process import here; here().job_log.compared_with = 'ranks 0-1'"
ALONE = "disabled here, after ranks 0-1 agreed: a rank that does not disable stays patched"


@pytest.mark.parametrize("rank", ["0", "1"])
@pytest.mark.parametrize(
    ("words", "then", "said"),
    [
        ("12", OFF, [TAKEN_OUT]),
        ("12", f"{OFF}; overlay.enable('up.double*'); {OFF}; {OFF}", [TAKEN_OUT] * 2),
        ("12", f"{AGREED}; {OFF}; overlay.enable('up.double*'); {OFF}; {OFF}", [ALONE] * 2),
        ("unused", OFF, []),
    ],
    ids=["once", "twice", "twice after ranks agreed", "nothing"],
)
def test_each_rank_says_that_patches_were_taken_out(
    program: Path, words: str, then: str, said: list[str], rank: str
) -> None:
    """On a rank other than the first it is a warning: no rank knows whether others did the same."""
    _, found = start(program, words, then, RANK=rank).communicate(timeout=60)
    place = f" [rank={rank},host={os.uname().nodename}]"
    wanted = [f"overlay: {line}{place if rank == '1' or line == ALONE else ''}" for line in said]
    assert [line for line in found.splitlines() if "disabled" in line] == wanted


def test_what_was_taken_out_stays_in_the_ledger(program: Path, tmp_path: Path) -> None:
    folder = str(tmp_path / "job")
    run(
        program,
        "12",
        "overlay.disable(); overlay.enable('none'); overlay.status()",
        OVERLAY_LEDGER_DIR=folder,
    )
    found = read("report", folder)
    assert found["groups"][0]["patches"] == {"up.doubled": "reverted"}
    assert found["effects"]["up.doubled"]["values"]["changed"] == 1


def test_the_end_takes_five_lines_at_most() -> None:
    def patch(name: str, **values: int) -> PatchStatus:
        effect = Effect(of="call", figures=(), values={**values})
        return PatchStatus(patch=name, state="applied", effect=effect)

    always = patch("up.always", changed=1)
    idle = patch("up.idle", calls=0, changed=0)
    looked = [patch(f"up.looked-{number}", calls=3, changed=0) for number in range(3)]
    changed = [patch(f"up.changed-{number}", calls=3, changed=2) for number in range(3)]
    held = patch("up.held", calls=0).replace(state="reverted", reason="was incomplete: a list has it")
    status = Engine(dict).status().replace(patches=(always, idle, held, *looked, *changed))
    said = lines(status)
    assert [line.split()[3] for line in said[:3]] == ["up.changed-0", "up.changed-1", "up.changed-2"]
    assert said[3:] == [
        "in this process: 4 more patches had work; OVERLAY_LEDGER_DIR keeps their figures",
        "in this process: applied, but had nothing to do: up.idle",
    ]
    assert len(lines(status.replace(patches=(always, idle, *changed)))) == 5
    many = [patch(f"up.idle-{number}", calls=0) for number in range(4)]
    assert lines(status.replace(patches=(*many,))) == [
        "in this process: applied, but had nothing to do: 4 patches"
    ]
    # Somebody calls the original of one that is incomplete, and the parent of a fork had work, perhaps.
    assert lines(status.replace(patches=(idle.replace(state="incomplete"),))) == []
    assert lines(status.replace(patches=(always, idle)), is_fork=True) == [
        "in this process: up.always changed 1 call"
    ]


def test_a_process_without_the_upstream_says_and_leaves_nothing(program: Path, tmp_path: Path) -> None:
    assert run(program, "unused", OVERLAY_LEDGER_DIR=str(tmp_path / "job")) == []
    assert not (tmp_path / "job").exists()


def test_a_process_that_fails_says_it_too(program: Path) -> None:
    process = start(program, "12", "raise ValueError")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "in this process: up.doubled changed 1 of 1 call" in said


def test_a_ledger_that_many_say_is_written_once(program: Path, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    for rank in range(3):
        run(program, f"{rank},{10 + rank}", RANK=str(rank), WORLD_SIZE="5", OVERLAY_LEDGER_DIR=str(folder))
    names = sorted(path.name.partition("-")[0] for path in folder.iterdir())
    assert names == ["ledger", "process", "process", "process"]
    assert all(path.stat().st_size < 512 for path in folder.glob("process-*"))
    found = job.read(str(folder))
    assert found.names == (0, 1, 2)
    effect, count = found.effects["up.doubled"]
    assert (effect.values, count) == ({"calls": 6, "changed": 3, "largest": 12}, 3)
    assert found.missing == (3, 4)
    assert found.cut_short == ()
    said = found.table()
    assert "3 processes that say the same\nranks 0-2\n" in said
    assert "  applied: up.doubled\n" in said
    assert "up.doubled changed 3 of 6 calls; up to 12 (3 processes)" in said
    assert "There is no ledger of ranks 3-4." in said


def test_a_rank_with_other_settings_and_one_with_other_code_of_a_patch_are_named(
    program: Path, tmp_path: Path
) -> None:
    folder = str(tmp_path / "job")
    for rank in range(4):
        with open(tmp_path / "patches/up/doubled/effect.py", "a") as file:  # noqa: PTH123
            file.write("MORE = 1\n" * (rank == 3))
        run(program, "1", RANK=str(rank), OVERLAY_LEDGER_DIR=folder, OVERLAY_STRICT=str(int(rank == 2)))
    found = job.read(folder)
    one, _ = found.to_dict()["differences"]
    assert (one["fact"], [who for who, _ in one["said"]]) == ("overlay", ["ranks 0-2", "rank 3"])
    assert "4 processes that say 3 different things" in found.table()
    assert "\n  strict\n    ranks 0-1,3  no\n    rank 2       yes" in found.table()


def test_a_process_that_is_killed_leaves_what_was_written_last(program: Path, tmp_path: Path) -> None:
    wait = "from overlay.records import run\nimport time\nprint(1, flush=True)\ntime.sleep(3600)"
    early = "import overlay.records.run as r; r.FIRST = 0.2\n"
    text = program.read_text()
    program.write_text(early + text)
    process = start(program, "12,3", wait, RANK="0", OVERLAY_LEDGER_DIR=str(tmp_path / "job"))
    # On a busy machine it may be written before the calls too.
    while not [path for path in tmp_path.glob("job/process-*.json") if '"calls": 2' in path.read_text()]:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    found = job.read(str(tmp_path / "job"))
    assert found.effects["up.doubled"][0].values == {"calls": 2, "changed": 1, "largest": 12}
    assert found.who(found.cut_short) == "rank 0"


def test_a_process_that_ended_well_is_not_said_to_be_cut_short(program: Path, tmp_path: Path) -> None:
    """What was registered before, as by Ray, takes its time at the end."""
    early = "import overlay.records.run as r; r.FIRST = r.LAST = 0.05\n"
    early += "import atexit, time; atexit.register(time.sleep, 1)\n"
    program.write_text(early + program.read_text())
    run(program, "12,3", OVERLAY_LEDGER_DIR=str(tmp_path / "job"))
    found = job.read(str(tmp_path / "job"))
    assert found.effects["up.doubled"][0].values == {"calls": 2, "changed": 1, "largest": 12}
    assert not found.cut_short


def test_a_fork_that_did_something_leaves_it_too(program: Path, tmp_path: Path) -> None:
    """`multiprocessing` ends its forks without what is registered for the end of a process."""
    forks = """
import time
pids = []
for works in (True, False):
    pids.append(os.fork())
    if not pids[-1]:
        up.double(12) if works else None
        time.sleep(3600)
print(*pids, flush=True)
sys.stdin.read()
"""
    program.write_text("import overlay.records.run as r; r.FIRST = 0.2\n" + program.read_text())
    process = start(program, "", forks, OVERLAY_LEDGER_DIR=str(tmp_path / "job"))
    assert process.stdout is not None
    pids = [int(word) for word in process.stdout.readline().split()]
    while not [path for path in tmp_path.glob("job/process-*.json") if '"calls": 1' in path.read_text()]:
        time.sleep(0.05)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=60)
    found = job.read(str(tmp_path / "job"))
    assert found.effects["up.doubled"] == (found.effects["up.doubled"][0], 1)
    assert found.who(found.cut_short) == f"process {pids[0]} on {os.uname().nodename} (no rank)"


@pytest.mark.parametrize("place", ["/proc/no/such", "file"])
def test_a_folder_that_cannot_be_written_to_is_one_warning(program: Path, tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("in the way")
    folder = place if place.startswith("/") else str(tmp_path / place)
    said = run(program, "12", OVERLAY_LEDGER_DIR=folder)
    assert len([line for line in said if f"the ledger cannot be written to {folder}" in line]) == 1


def test_files_that_are_broken_are_named_and_the_rest_is_read(program: Path, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    run(program, "12", RANK="0", OVERLAY_LEDGER_DIR=str(folder))
    whole = next(folder.glob("process-*"))
    said = json.loads(whole.read_text())
    wrong: dict[str, Any] = {
        "a": "",
        "b": "[]",
        "c": "{}",
        "d": json.dumps({**said, "ledger": "../../x"}),
        "e": json.dumps({**said, "ledger": "0" * 32}),
        "f": whole.read_text()[:-9],
        "g": json.dumps({**said, "world": 10**12}),
        "h": json.dumps({**said, "world": "2"}),
        "i": json.dumps({**said, "rank": {"a": 1}}),
        "j": json.dumps({**said, "effects": [1]}),
    }
    for name, text in wrong.items():
        (folder / f"process-{name}.json").write_text(text)
    found = job.read(str(folder))
    assert len(found.names) == 1
    assert len(found.unreadable) == len(wrong)
    for name in wrong:
        assert any(text.startswith(f"process-{name}.json: ") for text in found.unreadable)


@pytest.mark.parametrize("broken", [{"patches": None}, {"python": []}, {"pinned": {}}, {"strict": 1}])
def test_a_ledger_that_is_none_is_named(broken: dict[str, Any], program: Path, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    for rank in ("0", "1"):
        run(program, "12", RANK=rank, OVERLAY_LEDGER_DIR=str(folder))
    (ledger,) = folder.glob("ledger-*")
    said = json.loads(ledger.read_text())
    # One process said something else, and that is not what was written.
    other = folder / f"ledger-{'0' * 32}.json"
    other.write_text(json.dumps({**said, **broken}))
    whole = next(folder.glob("process-*"))
    whole.write_text(json.dumps({**json.loads(whole.read_text()), "ledger": "0" * 32}))
    found = job.read(str(folder))
    assert len(found.names) == 1
    (sentence,) = found.unreadable
    assert sentence.startswith(f"{whole.name}: {other.name}: {next(iter(broken))} = ")
    assert sentence in " ".join(found.table().split())


def test_a_relative_folder_is_that_of_the_start(program: Path, tmp_path: Path) -> None:
    """The job goes elsewhere while it runs."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    start_here = f"import os; os.chdir({str(elsewhere)!r})"
    process = start(program, "12", start_here, cwd=tmp_path, OVERLAY_LEDGER_DIR="job")
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert len(list((tmp_path / "job").glob("process-*"))) == 1
    assert list(elsewhere.iterdir()) == []


def test_many_processes_write_at_once(tmp_path: Path) -> None:
    from overlay.records.run import LedgerFile

    status, children = Engine(dict).status(), []
    for rank in range(200):
        pid = os.fork()
        if pid == 0:
            os.environ.update(RANK=str(rank), WORLD_SIZE="200")
            LedgerFile(str(tmp_path)).write(status, ended=True)
            os._exit(0)
        children.append(pid)
    assert all(os.waitpid(pid, 0)[1] == 0 for pid in children)
    found = job.read(str(tmp_path))
    assert len(found.names) == 200
    assert not found.gaps()
    assert len(list(tmp_path.iterdir())) == 201


def test_the_command_prints_text_and_data(program: Path, tmp_path: Path) -> None:
    folder = str(tmp_path / "job")
    run(program, "12", RANK="0", OVERLAY_LEDGER_DIR=folder)
    told = overlay("report", folder).stdout
    assert told.startswith("1 process\n")
    assert "up.doubled changed 1 of 1 call; up to 12 (1 process)" in told
    found = read("report", folder)
    assert (found["processes"], found["differences"], found["missing"]) == (1, [], [])
    assert found["effects"]["up.doubled"]["values"]["changed"] == 1
