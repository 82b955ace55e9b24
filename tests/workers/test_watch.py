"""What `overlay run` says, while a job runs and at its end, of a Python that no look at a command tells."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from worksite import ARMED, PROBE, Venv, clean_environment, overlay_run

#: Loads what has the name of torch's library, says so, and waits to be let go.
HOLD = """
import mmap, os, sys, time
with open("libtorch_python_x.so", "rb") as file:
    held = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
open(f"up-{sys.argv[1]}", "w").close()
until = time.monotonic() + 60
while not os.path.exists("go") and time.monotonic() < until:
    time.sleep(0.02)
"""
#: The same in a process that forks, and in that fork alone.
FORK = f"import os, sys\nif os.fork():\n    os._exit(os.wait()[1])\ndel sys.argv[1]\n{HOLD}"
SAID = "overlay: NOT patched: process "
LEFT = "overlay: heard of no process that sh started here and that imported, with overlay enabled, a module"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "libtorch_python_x.so").write_text("x" * 4096)
    (tmp_path / "hold.py").write_text(HOLD)
    (tmp_path / "fork.py").write_text(FORK)
    return tmp_path


def wait_for(file: Path, text: str = "") -> None:
    """Wait until a file is there, and has a text."""
    until = time.monotonic() + 60
    while not (file.exists() and text in file.read_text()):
        assert time.monotonic() < until, f"{file}: {file.exists() and file.read_text()}"
        time.sleep(0.02)


def named(venv: Venv, folder: Path, line: str, **first: str) -> list[str]:
    """Run a script, and return the commands of the processes that are named.

    It starts the `first` ones, waits until they are up, and then has a line that starts `hold.py last`.
    """
    lines = [*(f"{command} hold.py {name} &" for name, command in first.items())]
    until = "while [ ! -e {} ]; do sleep 0.02; done"
    script = "\n".join([*lines, until.format("first-are-up"), line, until.format("go"), "wait"])
    words = [str(venv.python), "-m", "overlay", "run", "sh", "-c", script]
    said = folder / "said"
    with said.open("w") as stream:
        started = subprocess.Popen(
            words,
            cwd=folder,
            stderr=stream,
            stdout=subprocess.DEVNULL,
            env=clean_environment(**venv.on_path()),
        )
        for name in first:
            wait_for(folder / f"up-{name}")
        (folder / "first-are-up").touch()
        wait_for(said, "hold.py last")
        (folder / "go").touch()
        started.wait(timeout=60)
    found = [line for line in said.read_text().splitlines() if line.startswith(SAID)]
    return [re.split(" in it: |`: ", line)[1] for line in found]


def test_a_python_without_overlay_is_named_and_one_with_it_is_not(
    worksite: Venv, other: Venv, folder: Path
) -> None:
    """Nor is a fork of that, nor what somebody has switched off."""
    found = named(
        worksite, folder, f"{other.python} hold.py last &",
        plain=str(worksite.python),
        fork=f"{worksite.python} fork.py",
        off=f"OVERLAY=0 {other.python}",
        unheard=f"env -i OVERLAY=1 {worksite.python}",
        nested=f"{worksite.python} -m overlay run {worksite.python}",
    )  # fmt: skip
    assert found == [f"{other.python} hold.py last"]


@pytest.mark.parametrize(
    "line",
    [
        "env -i {bare} hold.py last &",  # without the variables
        "setsid -f {bare} hold.py last",  # which is no child any more
        "{ours} -c 'import os, sys; os.execv(sys.argv[1], sys.argv[1:])' {bare} hold.py last &",
        "{ours} -S hold.py last &",
    ],
)
def test_it_is_found_however_it_was_started(worksite: Venv, other: Venv, folder: Path, line: str) -> None:
    (found,) = named(worksite, folder, line.format(ours=worksite.python, bare=other.python))
    assert found.endswith("hold.py last")


def test_at_the_end_it_says_that_nothing_was_patched(worksite: Venv, other: Venv) -> None:
    for script in ("exit 3", f"{other.python} -c pass; exit 3", f"{worksite.python} -c pass; exit 3"):
        done = overlay_run(worksite, "sh", "-c", script)
        assert done.returncode == 3
        assert LEFT in done.stderr
    for command in ("python", f"{worksite.python} -m overlay run python", "env python"):
        done = overlay_run(worksite, "sh", "-c", f'{command} -c "{PROBE}"; exit 3', **ARMED)
        assert (done.returncode, done.stdout) == (3, "200\n"), done.stderr
        assert LEFT not in done.stderr
    # However it was started: without standard input, and by something that does not wait for its children.
    run = f"exec {worksite.python} -m overlay run sh -c 'test -n \"$OVERLAY_WATCH\"' <&-"
    for handler in (signal.SIG_DFL, signal.SIG_IGN):
        done = subprocess.run(
            ["/bin/sh", "-c", run], cwd=worksite.folder, env=clean_environment(), capture_output=True,
            text=True, check=True, preexec_fn=partial(signal.signal, signal.SIGCHLD, handler),
        )  # fmt: skip
        assert LEFT in done.stderr
    # What is no script, and what was not started, need no such word.
    for words in (["python", "-c", "pass"], ["no-such-command"]):
        assert "heard of no process" not in overlay_run(worksite, *words).stderr


def test_nothing_waits_for_who_watches(worksite: Venv, folder: Path) -> None:
    """It holds neither the output of the command nor the file of a lock, and it ends."""
    (folder / "lock").touch()
    run = f"{worksite.python} -m overlay run sh -c 'touch up; sleep 60'"
    started = subprocess.Popen(
        ["/bin/sh", "-c", f"exec 9<lock; flock 9; {run} >out & wait"],
        cwd=folder, env=clean_environment(**worksite.on_path(), JOB=str(folder)), start_new_session=True,
    )  # fmt: skip
    try:
        wait_for(folder / "up")
        (pid,) = watching(folder)
        # What looks for the job by its words must not find it.
        assert b"sleep" not in Path(f"/proc/{pid}/cmdline").read_bytes()
        held = [file.readlink() for file in (Path(f"/proc/{pid}/cwd"), *Path(f"/proc/{pid}/fd").iterdir())]
        assert len(held) > 4
        assert not [file for file in held if file.is_relative_to(folder)]
    finally:
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()
    until = time.monotonic() + 60
    while watching(folder):
        assert time.monotonic() < until
        time.sleep(0.02)


def watching(folder: Path) -> list[str]:
    """Return the processes that watch a command in a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            is_one = (process / "comm").read_text() == "overlay-watch\n"
            is_ours = f"JOB={folder}\0".encode() in (process / "environ").read_bytes()
            found += [process.name] if is_one and is_ours else []
    return found
