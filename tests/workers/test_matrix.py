"""Every kind of process runs the same patches, each of them a real one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from worksite import ARMED, PATCHED, PLAIN, PROBE, Venv, clean_environment

HERE = Path(__file__).parent
KINDS = {
    "main",
    "fork",
    "subprocess of a subprocess",
    *(
        f"{kind} {method}"
        for kind in ("multiprocessing", "pool")
        for method in ("fork", "spawn", "forkserver")
    ),
}


@pytest.mark.parametrize("armed", [True, False])
def test_every_kind_of_process(worksite: Venv, armed: bool) -> None:
    done = worksite.run("-W", "ignore", str(HERE / "probe.py"), **(ARMED if armed else {}))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found) == KINDS
    assert set(found.values()) == {int(PATCHED if armed else PLAIN)}, found


def test_processes_that_start_in_another_folder_find_relative_paths(worksite: Venv, tmp_path: Path) -> None:
    """As of a job that goes to the folder of its output."""
    (tmp_path / "output").mkdir()
    lock = ["-m", "overlay", "lock", "--file", str(tmp_path / "a.lock")]
    assert worksite.run(*lock, **{**ARMED, "OVERLAY": "0"}).returncode == 0
    paths = {"OVERLAY_PIN": "a.lock", "OVERLAY_LEDGER_DIR": "ledgers"}
    enable = "import os, subprocess, sys, overlay; overlay.enable(); os.chdir('output')\n"
    for armed in ("1", "0"):
        done = subprocess.run(
            [str(worksite.python), "-c", f"{enable}subprocess.run([sys.executable, '-c', {PROBE!r}])"],
            capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path,
            env=clean_environment(**{**ARMED, **paths, "OVERLAY": armed}),
        )  # fmt: skip
        assert done.stdout.split() == [PATCHED if armed == "1" else PLAIN], done.stderr
    assert not (tmp_path / "output/ledgers").exists()
    assert (tmp_path / "ledgers").exists()


def test_ranks_of_torchrun_and_their_log(worksite: Venv, tmp_path: Path) -> None:
    """Ranks that agree, twice, and that refuse a patch, in one launch."""
    pytest.importorskip("torch")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [str(worksite.python), "-m", "overlay", "run", "--patches", "acme/*", "--"]
    command += [str(worksite.python), "-W", "ignore", *launcher, str(HERE / "rank_log.py"), str(tmp_path)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env=clean_environment(OVERLAY_PACKS="acme", OMP_NUM_THREADS="1"), cwd=tmp_path,
    )  # fmt: skip
    try:
        printed, said = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    lines = sorted(line for line in printed.splitlines() if line.startswith("rank "))
    assert lines == [f"rank 0: {PATCHED}", f"rank 1: {PATCHED}"], said
    digest = check_configuration(worksite, (tmp_path / "rank0.txt").read_text().splitlines()[0])
    has = f"1 applied, 0 refused, digest {digest[:12]}"
    host = os.uname().nodename
    warned = "overlay: NOT applied acme/fakeup.scale to fakeup 1.2.0: unknown-source: "
    ours, theirs = ((tmp_path / f"rank{rank}.txt").read_text().splitlines()[rank == 0 :] for rank in (0, 1))
    assert ours[:2] == [f"overlay: 2 ranks agree: {has}", "-- again"]
    assert theirs[:1] == ["-- again"]
    # Each rank that is disabled says so: the others stay patched, and so are processes that it starts.
    kept = "overlay: multiprocessing: OVERLAY is set: new processes are patched. "
    assert ours.pop(2).startswith(kept)
    assert theirs.pop(1).startswith(kept)
    gone = "overlay: disabled here, after ranks 0-1 agreed: a rank that does not disable stays patched"
    assert (ours.pop(2), theirs.pop(1)) == tuple(f"{gone} [rank={rank},host={host}]" for rank in (0, 1))
    # Another upstream is another configuration. Before the ranks meet, each warns.
    other = ours[2].rpartition("digest ")[2]
    assert other != digest[:12]
    assert [line[: len(warned)] for line in (ours[3], theirs[1])] == [warned] * 2
    places = [f"[rank={rank},host={host}]" for rank in (0, 1)]
    assert [line.rpartition(" ")[2] for line in (ours[3], theirs[1])] == places
    refused = f"0 applied, 1 refused (acme/fakeup.scale), digest {other}"
    assert ours[4:] == [f"overlay: 2 ranks agree: {refused}"]
    assert theirs[2:] == []
    # What the launcher says, and what is said at the end of the ranks.
    assert [line for line in said.splitlines() if line.startswith("overlay:")] == []


def test_ranks_that_never_meet(worksite: Venv, tmp_path: Path) -> None:
    """Each rank is a process as torchrun starts them; rank 0 starts another one that uses what is patched."""
    errors = []
    for rank in "01":
        environ = {**ARMED, "RANK": rank, "WORLD_SIZE": "2"}
        done = worksite.run(str(HERE / "probe.py"), "child", **environ)
        assert done.stdout.split() == [PATCHED] * 2, done.stderr
        errors.append(done.stderr.splitlines())
    digest = check_configuration(worksite, errors[0][0])
    alone = f"overlay: ranks not compared; rank 0: 1 applied, 0 refused, digest {digest[:12]}"
    assert errors[0][1:] == [alone]
    assert errors[1] == []
    done = worksite.run(str(HERE / "probe.py"), "child", **environ, OVERLAY_LOG="debug")
    place = f"[rank=1,host={os.uname().nodename}]"
    wanted = f"overlay: applied acme/fakeup.scale to fakeup 1.2.0 (2 sites) {place}"
    assert done.stderr.splitlines().count(wanted) == 2


def check_configuration(worksite: Venv, line: str) -> str:
    """Hold a line against what a job is run with, and return the digest, which is that of a lock."""
    lock = ("lock", "--update", "--file", "shown.lock")
    digest: str = worksite.read(*lock, **{**ARMED, "OVERLAY": "0"})["digest"]
    code = "import platform, overlay; print(overlay.__version__, platform.python_version())"
    version, python = worksite.run("-c", code).stdout.split()
    begin = f"overlay: configuration: overlay {version}, Python {python}, fakeup 1.2.0, "
    assert line.startswith(begin), line
    assert line.endswith(f"; 5 patches selected, digest {digest[:12]}")
    return digest
