"""`overlay run` with a shell script: which Pythons are asked, and what the log says of the others."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from shutil import which

import pytest
from worksite import Venv, overlay_run, program, refused

from overlay.launch.interpreter import of_shell

#: What is said of a script whose Pythons would be patched.
CHECKED = (
    "of the Pythons that {} may start, `python`, `python3` would be patched in this environment; "
    "no other was checked: a patched job logs `overlay: configuration: ...`\n"
)


def test_of_a_shell_each_python_is_asked_and_it_is_started_unless_the_job_is_strict_or_pinned(
    worksite: Venv, other: Venv, tmp_path: Path
) -> None:
    for held in ([], ["--strict"]):
        done = overlay_run(worksite, *held, "sh", "-c", "echo ran")
        assert (done.stdout, done.stderr) == ("ran\n", f"overlay: {CHECKED.format('sh')}")
    # A script that starts `python3` gets another one than a script that starts `python`.
    program(tmp_path / "python3", f'#!/bin/sh\nexec {other.python} "$@"\n')
    file = str(tmp_path / "overlay.lock")
    worksite.read("lock", "--file", file)
    path = worksite.on_path()["PATH"]
    for name, environ in (("python", other.on_path()), ("python3", {"PATH": f"{tmp_path}:{path}"})):
        done = overlay_run(worksite, "sh", "-c", "echo ran", **environ)
        assert (done.stdout, done.stderr.count("\n")) == ("ran\n", 1)
        said = f"sh may start any Python, and `{name}` would run without patches: "
        assert done.stderr.startswith(f"overlay: the command is started anyway: {said}")
        for held in (["--strict"], ["--pin", file]):
            why = refused(worksite, *held, "sh", "-c", "echo ran", **environ)
            assert f"not started, because the job is strict or pinned: {said}" in why


def test_a_launcher_that_is_told_to_start_no_python_may_start_any(worksite: Venv, tmp_path: Path) -> None:
    for name in ("accelerate", "deepspeed", "torchrun"):
        program(tmp_path / name, f"#!{worksite.python}\nprint('ran')\n")
    path = {"PATH": f"{tmp_path}:{worksite.on_path()['PATH']}"}
    run = ["python", "-m", "torch.distributed.run"]
    for words in (
        ["torchrun", "--no-python", "--nproc-per-node", "1", "./x"], [*run, "--no-python", "sh", "x.sh"],
        ["accelerate", "launch", "--no_python", "x"], ["deepspeed", "--no_python", "python", "x.py"],
        ["torchrun", "--no-p", "x"],
    ):  # fmt: skip
        said = refused(worksite, "--strict", *words, **path)
        program_of = f"`{' '.join(run)}`" if words[0] == "python" else words[0]
        assert f"overlay cannot tell which Python {program_of} starts. What to do: move `overlay run`" in said
    program(tmp_path / "jupyter-nbconvert", f"#!{worksite.python}\n")
    said = "cannot tell which Python jupyter-nbconvert starts"
    assert said in refused(worksite, "--strict", "jupyter-nbconvert", "x.ipynb", **path)
    for words in (["x.py", "--no-python"], ["./x", "--no-persist"]):
        assert overlay_run(worksite, "--strict", "torchrun", *words, **path).stdout == "ran\n"


def test_one_overlay_run_is_enough(worksite: Venv, tmp_path: Path) -> None:
    """What starts another one may not hand on what this one sets, as `sudo` does not."""
    program(tmp_path / "uv", "#!/bin/sh\necho ran\n")
    path = {"PATH": f"{tmp_path}:{worksite.on_path()['PATH']}"}
    for word in ("overlay", f"{worksite.folder}/bin/overlay", "python -m overlay"):
        words = ["uv", "run", *word.split(), "run", "python", "x.py"]
        said = (
            "uv may not hand on what `overlay run` sets. What to do: leave this one out, and give its options"
        )
        assert said in refused(worksite, "--strict", *words, **path)
        done = overlay_run(worksite, *words, **path)
        assert (done.stdout, f"overlay: the command is started anyway: {said}" in done.stderr) == (
            "ran\n",
            True,
        )
    assert "cannot tell which Python uv starts" in refused(worksite, "--strict", "uv", "overlay run", **path)


def test_launchers_on_the_path_are_asked_too(worksite: Venv, other: Venv, tmp_path: Path) -> None:
    """As those of an image are on the PATH, behind an environment that has none."""
    bins = tmp_path / "bin"
    bins.mkdir()
    path = {"PATH": f"{worksite.on_path()['PATH']}:{bins}"}
    names = ("accelerate", "deepspeed", "ray", "torchrun")
    for name in names:
        program(bins / name, f"#!{worksite.python}\n")
    done = overlay_run(worksite, "--strict", "sh", "-c", "echo ran", **path)
    asked = ", ".join(f"`{name}`" for name in ("python", "python3", *(f"{bins}/{name}" for name in names)))
    said = f"of the Pythons that sh may start, {asked} would be patched in this environment; no other was"
    assert (done.stdout, said in done.stderr) == ("ran\n", True)
    for name in names:
        program(bins / name, f"#!{other.python}\n")
        said = refused(worksite, "--strict", "sh", "-c", "echo ran", **path)
        assert (
            f"sh may start any Python, and `{bins}/{name}` would run without patches: {other.python} is"
            in said
        )
        assert (
            "put `overlay run` into the script, right before that one, and start the script without" in said
        )
        program(bins / name, "#!/bin/sh\n")  # of a tool that chooses one
    done = overlay_run(worksite, "--strict", "sh", "-c", "echo ran", **path)
    assert (done.stdout, done.stderr) == ("ran\n", f"overlay: {CHECKED.format('sh')}")


def test_a_script_is_not_read(worksite: Venv, other: Venv, tmp_path: Path) -> None:
    """Nothing in it tells what it starts. The log says that nothing else was checked."""
    own = program(tmp_path / "own.sh", f"echo ran\nexit\n. {other.folder}/bin/activate\nconda activate x\n")
    for given in ([], ["ray"], ["uv", "run"], ["--python", str(other.python)], [str(other.python), "x.py"]):
        done = overlay_run(worksite, "--strict", "sh", own, *given, **worksite.on_path())
        assert (done.stdout, done.stderr) == ("ran\n", f"overlay: {CHECKED.format('sh')}")


def test_an_interactive_shell_keeps_the_terminal(worksite: Venv) -> None:
    parent, child = os.openpty()
    command = [str(worksite.python), "-m", "overlay", "run", "bash", "-ic", "read x; echo got $x"]
    take = "fcntl.ioctl(0, termios.TIOCSCTTY, 0)"
    code = f"import fcntl, os, sys, termios; {take}; os.execv(sys.argv[1], sys.argv[1:])"
    with subprocess.Popen(
        [str(worksite.python), "-c", code, *command], stdin=child, stdout=subprocess.PIPE, stderr=child,
        start_new_session=True, env={**os.environ, **worksite.on_path()}, cwd=worksite.folder, text=True,
    ) as job:  # fmt: skip
        os.write(parent, b"hello\n")
        assert job.communicate(timeout=60)[0] == "got hello\n"
    os.close(parent)
    os.close(child)


def test_a_shell_at_a_terminal_is_asked_as_one(worksite: Venv, other: Venv, tmp_path: Path) -> None:
    (tmp_path / ".bashrc").write_text(f"export PATH={other.on_path()['PATH']}\n")
    parent, child = os.openpty()
    command = [str(worksite.python), "-m", "overlay", "run", "--strict", "bash"]
    done = subprocess.run(
        command, stdin=child, stderr=subprocess.PIPE, cwd=worksite.folder, text=True, timeout=60, check=False,
        env={**os.environ, **worksite.on_path(), "HOME": str(tmp_path)},
    )  # fmt: skip
    os.close(parent)
    os.close(child)
    assert (done.returncode, "and `python` would run without patches: " in done.stderr) == (1, True)


def test_a_script_whose_first_line_names_nothing_is_run_by_a_shell(
    worksite: Venv, other: Venv, tmp_path: Path
) -> None:
    for name in ("job.slurm", "x.sh"):
        words = (program(tmp_path / name, 'A=(1); echo "ran $0 $1"\n'), "a b")
        done = overlay_run(worksite, "--strict", *words)
        assert (done.stdout, CHECKED.format(words[0]) in done.stderr) == (f"ran {words[0]} a b\n", True)
    program(tmp_path / "y.sh", "\x7fELF\0")
    assert overlay_run(worksite, str(tmp_path / "y.sh")).returncode == 126
    for before in ([], ["nohup"]):
        said = refused(worksite, "--strict", *before, *words, **other.on_path())
        assert f"{other.folder}/bin/python is a different Python" in said


def test_a_folder_that_is_gone_is_named(worksite: Venv, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    for start, status in (("overlay run bash -c 'exit 7'", 7), ("overlay run --pin x.lock python -c 1", 2)):
        command = f"mkdir -p {gone}; cd {gone}; rmdir {gone}; exec {worksite.python} -m {start}"
        done = worksite.run(
            "-c", f"import os; os.execvp('bash', ['bash', '-c', {command!r}])", **worksite.on_path()
        )
        assert done.returncode == status, done.stderr
        said = "not started: the current folder no longer exists: cd to one that does" in done.stderr
        assert said == (status == 2)


@pytest.mark.parametrize(
    "command",
    [
        "bash -l SCRIPT",
        "bash -euo pipefail -lc SCRIPT",
        "nohup bash --login SCRIPT",
        "SCRIPT",
        "bash -eu SCRIPT",
    ],
)
def test_a_shell_is_asked_for_what_it_finds_after_its_start(
    command: str, worksite: Venv, other: Venv, tmp_path: Path
) -> None:
    profile = tmp_path / ".bash_profile"
    script = program(tmp_path / "run.sh", "#!/bin/bash -l\necho ran\n")
    words = command.replace("SCRIPT", script).split()
    environ = {"HOME": str(tmp_path), "BASH_ENV": str(profile) if words[:2] == ["bash", "-eu"] else ""}
    paths = {venv: f"export PATH={venv.on_path()['PATH']}\n" for venv in (worksite, other)}
    profile.write_text(f"echo hello\n{paths[worksite]}")
    done = overlay_run(worksite, "--strict", *words, **environ)
    assert (done.stdout.split()[-1], "may start, `python`, `python3` would be patched" in done.stderr) == (
        "ran", True
    )  # fmt: skip
    function = f'python() {{ {other.python} "$@"; }}\nexport -f python\n'
    alias = f"shopt -s expand_aliases\nalias python={other.python}\n"
    for text in (paths[other], paths[worksite] + function, paths[worksite] + alias):
        profile.write_text(text)
        said = refused(worksite, "--strict", *words, **environ)
        assert "and `python` would run without patches: " in said
        assert f"{other.folder}/bin/python is a different Python, without overlay" in said
    profile.write_text(f"{paths[worksite]}unset OVERLAY\n")
    assert "python does not get the variables OVERLAY...: see what " in refused(
        worksite, "--strict", *words, **environ
    )
    assert "ran" in overlay_run(worksite, "--strict", "bash", script, HOME=str(tmp_path)).stdout


def test_what_a_shell_leaves_running_and_what_is_no_python_keep_nothing_from_starting(
    worksite: Venv, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    (tmp_path / "start").write_text(f"sleep 300 & pid=$!\necho $pid >> {pids}\n")
    program(tmp_path / "python", "#!/bin/sh\nexit 1\n")
    environ = {"BASH_ENV": str(tmp_path / "start"), "PATH": f"{tmp_path}:{worksite.on_path()['PATH']}"}
    words = ["bash", "-c", "kill $pid; echo ran"]
    try:
        done = worksite.run("-m", "overlay", "run", "--strict", *words, **environ)
        assert done.stdout == "ran\n", done.stderr
        assert "`python3` would be patched in this environment; `python` cannot be asked; no" in done.stderr
    finally:
        for pid in pids.read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


@pytest.mark.parametrize(
    ("shell", "file", "text"),
    [
        ("zsh", ".zshenv", "export PATH={}"),
        ("fish", ".config/fish/config.fish", "set -x PATH (string split : {})"),
        ("tcsh", ".tcshrc", "setenv PATH {}"),
    ],
)
def test_other_shells_are_asked_with_the_files_that_they_read(
    worksite: Venv, other: Venv, tmp_path: Path, shell: str, file: str, text: str
) -> None:
    if which(shell, path="/usr/bin:/bin") is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    environ = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / ".config")}
    for venv in (worksite, other):
        (tmp_path / file).write_text(f"{text.format(venv.on_path()['PATH'])}\n")
        done = overlay_run(worksite, shell, "-c", "echo ran", **environ)
        assert (done.stdout, "and `python` would run without patches" in done.stderr) == (
            "ran\n",
            venv is other,
        )


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["sh", "x.sh"], ["sh", "-c", 'python "$@"']),
        (["fish", "-N", "x.fish"], ["fish", "-N", "-c", "python $argv[2..-1]"]),
        (["fish", "-C", "x", "--command=y"], ["fish", "-C", "x", "-c", "python $argv[2..-1]"]),
        (["fish", "--command", "y", "-N"], ["fish", "-N", "-c", "python $argv[2..-1]"]),
        (["fish", "-f", "x", "-Np", "y", "z"], ["fish", "-f", "x", "-Np", "y", "-c", "python $argv[2..-1]"]),
        (["bash", "-rcfile", "c", "x.sh"], ["bash", "-rcfile", "c", "-c", 'python "$@"']),
        (["/bin/tcsh", "-f", "-c", "x"], ["/bin/tcsh", "-f", "-c", "python $argv[2-]:q"]),
    ],
)
def test_each_shell_is_asked_in_its_own_language(words: list[str], asked: list[str]) -> None:
    assert list(of_shell(words, named=False)[0].by) == asked
