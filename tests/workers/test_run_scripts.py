"""`overlay run` with a shell script: which Pythons are asked, and what the log says of the others."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from worksite import Venv, overlay_run, program, refused

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
        ["torchrun", "--no-py", "x"],
    ):  # fmt: skip
        said = refused(worksite, "--strict", *words, **path)
        program_of = f"`{' '.join(run)}`" if words[0] == "python" else words[0]
        assert f"overlay cannot tell which Python {program_of} starts. What to do: put `overlay run`" in said
    assert overlay_run(worksite, "--strict", "torchrun", "x.py", "--no-python", **path).stdout == "ran\n"


def test_what_says_overlay_run_itself_is_started(worksite: Venv, other: Venv, tmp_path: Path) -> None:
    """Where its Python is known it is checked, and strict mode with it."""
    program(tmp_path / "uv", '#!/bin/sh\nshift\nexec "$@"\n')
    path = {"PATH": f"{tmp_path}:{worksite.on_path()['PATH']}"}
    line = f"{worksite.python} -m overlay run python"
    script = program(tmp_path / "x.sh", f"#!/bin/sh\nPATH={path['PATH']}\n{line} -c \"print('ran')\"\n")
    said = (
        "has `overlay run` in it, which checks the Python that it starts; no other was checked: a patched job"
    )
    for words in ([script], ["sh", "-c", f"{line} -c \"print('ran')\""]):
        done = overlay_run(worksite, "--strict", *words, **({} if words[1:] else other.on_path()))
        assert (done.stdout, done.stderr.startswith(f"overlay: {words[0]} {said}")) == ("ran\n", True)
    for word in ("overlay", f"{worksite.folder}/bin/overlay", "python -m overlay"):
        start = ["uv", "run", *word.split(), "run"]
        done = overlay_run(worksite, "--strict", *start, "python", "-c", "print('ran')", **path)
        assert (done.stdout, f"overlay: uv {said}" in done.stderr) == ("ran\n", True)
        assert "is a different Python" in refused(
            worksite, "--strict", *start, str(other.python), "x.py", **path
        )
    program(tmp_path / "x.sh", f"#!/bin/sh\n# overlay run python\n{other.python} x.py\n")
    assert "is a different Python" in refused(worksite, "--strict", script)


#: Lines of a script: `BINS` has programs, `OURS` is an environment with overlay, and `OTHER` one without.
HEALTHY = (
    "", "# ray start", ": x/deepspeed", ". OURS/bin/activate", "false && . /not/there/bin/activate",
    "[ -f .venv/bin/activate ] && source .venv/bin/activate", "cd FOLDER; . ours/bin/activate",
    "L=(absent run python3)", "BINS/pipenv install", "uv pip list", "$(dirname $(which python))/python -V",
    'command -v mamba && eval "$(mamba shell hook)" && mamba $X', "PATH=BINS:$PATH",
    "for v in no OURS; do [ -f $v/bin/activate ] && . $v/bin/activate; done", "echo OTHER/bin/pythonic",
    ": $'it\\'s' # don't", "B=OURS/bin; f() { $B/python -V; }; f", "curl x | bash",
    "OURS/bin/python -V", "echo 'not closed", "deepspeed x.py",
    "PATH=OURS/bin:OTHER/bin", ". FOLDER/conda/bin/activate", "python x.py --data /mnt/conda/x --save /run",
    "LD_LIBRARY_PATH=/conda/lib OUT=/run python x.py", "conda install -y --dry-run x", "BINS/uv pip list",
    "python conda/run.py", "uv sync; python run.py",
    'V=OURS; "$V"/bin/python3 -V', '$(dirname "$(which python)")/../bin/python3 -V', "OURS/*/python3 -V",
    "source OURS/bin/activate 2>/dev/null || true", "test -f OURS/bin/activate -a -d /",
    'V=OURS; export PATH="$V/bin:/usr/bin:/bin"', ". OURS/bin/activate && true", ". FOLDER/.bashrc",
    "Y=OURS; . $Y/bin/activate || exit",
    'echo "conda env is ready, run training now"', "cat <<X\nActivate conda first, then run this\nX",
    "PATH=FOLDER/conda/bin:$PATH; echo activate the environment",
    "export PATH=$PATH:OTHER/bin", 'PATH="${PATH}:OTHER/bin"',
)  # fmt: skip
DIFFERENT = (
    "true || accelerate launch x.py", 'source "OTHER/bin/activate"', "if true; then . OTHER/bin/activate; fi",
    "echo start; . OTHER/bin/activate", "bash -c 'echo x; . OTHER/bin/activate'",
    "grep -q ' # x' /etc/hostname; BINS/accelerate", "PATH=OTHER/bin:$PATH",
    "P=OTHER/bin/python; true || $P x.py",
    "bash BINS/nested.sh", 'eval "true || OTHER/bin/python x.py"', "true || $(which accelerate) launch x.py",
    "f() { accelerate launch; }", "true || mpirun -n 2 accelerate launch x.py", ". other/bin/activate",
    "if true; then P=OTHER/bin/python; fi; true || $P x.py", "true || python3.99 x.py",
    'true || bash "$(dirname "$0")/bin/nested.sh"', ". ./bin/nested.sh", "./other/bin/python -V",
    "export PATH=FOLDER/user:$PATH; true || torchrun x.py", "FOLDER/py@3/bin/python x.py",
    "bash -c 'bash BINS/nested.sh'", ". BINS/nested", "bash -x BINS/nested", "source BINS/nested.slurm",
    "PATH=/nothing:OTHER/bin:OURS/bin",
    "export PATH=OTHER/bin${PATH:+:${PATH}}", "true || env PATH=OTHER/bin python x.py",
    "cat <<X\nOTHER/bin/python x.py\nX",
)  # fmt: skip
UNTOLD = (
    "true || OTHER/bin/torchrun x.py",
    "source ~/.bashrc; conda activate x", "~/conda/bin/conda --no-plugins run -n x python x.py",
    "pyenv shell 3.10", "pyenv activate x", "true || pyenv exec python x.py",
    "source activate x", "source FOLDER/conda/bin/activate x-1", 'true || . "$CONDA"/bin/activate x && true',
    ". FOLDER/conda/bin/activate base", ". ~/conda/bin/activate /envs/x", "true || BINS/uv run x.py",
    'L=(python3)\n[ -n "$X" ] && L=(uv run python3)\ntrue || "${L[@]}" x.py',
    "true || uv -v run x.py", "printf x | uv run x.py", "true || pipenv run python3",
    ". FOLDER/conda.sh; true || conda activate x", 'eval "$($UNKNOWN/conda hook)"; true || conda activate x',
)  # fmt: skip
#: What a search of the text doesn't find. The log says that nothing else was checked.
NOT_CHECKED = (
    "true || . $NAME/bin/activate", "B=BINS; true || $B/accelerate launch", "cd OTHER; . bin/activate",
    "make", "ssh host x.py", "alias python=$X", "P=${UNSET:-OTHER/bin/python}; true || $P x.py",
    "poetry run python x.py", "~/.local/bin/uv run x.py", "module load python/3.10",
)  # fmt: skip


def test_what_a_script_writes_out_is_asked_and_the_log_says_what_was(
    worksite: Venv, other: Venv, tmp_path: Path
) -> None:
    bins, script = tmp_path / "bin", tmp_path / "run.sh"
    bins.mkdir()
    # As in a virtual environment on top of an image, which has Python, and the launchers of the image.
    for name in ("accelerate", "ray", "python3.99"):
        program(bins / name, f"#!{other.python}\n")
    (bins / "python3.99").unlink()
    (bins / "python3.99").symlink_to(other.python)
    for name in ("deepspeed", "mpirun", "pipenv", "pyenv", "uv"):
        program(bins / name, "#!/bin/sh\n")
    for name in ("nested", "nested.sh", "nested.slurm"):
        program(bins / name, "#!/bin/sh\ntrue || accelerate launch\n")
    (tmp_path / "user").mkdir()
    program(tmp_path / "user/torchrun", f"#!{other.python}\n")
    shutil.copy("/bin/true", other.folder / "bin/torchrun")
    (tmp_path / "py@3").symlink_to(other.folder)
    (tmp_path / "conda").symlink_to(worksite.folder)
    for name, venv in (("ours", worksite), ("other", other)):
        (venv.folder / "bin/activate").write_text("true || conda activate x\n")  # as conda's own says
        (tmp_path / name).symlink_to(venv.folder)
    (tmp_path / "conda.sh").write_text("")
    (tmp_path / ".bashrc").write_text(f"PATH={other.folder}/bin:$PATH\n")
    path = f"{bins}:{worksite.folder}/bin:/usr/bin:/bin"  # and nothing else that this machine has
    known = {"BINS": bins, "FOLDER": tmp_path, "OURS": worksite.folder, "OTHER": other.folder}

    def said(text: str) -> str:
        for name, value in known.items():
            text = re.sub(rf"\b{name}\b", str(value), text)
        script.write_text(f"{text}\n")
        command = [str(worksite.python), "-m", "overlay", "run", "--strict", "bash", str(script)]
        code = f"import os; os.chdir({str(tmp_path)!r}); os.execv({command[0]!r}, {command!r})"
        done = worksite.run("-c", code, PATH=path, NAME=str(other.folder))
        return done.stderr

    checked = "of the Pythons that bash may start, `python`, `python3`"
    assert [text for text in HEALTHY if f"overlay: {checked}" not in said(text)] == []
    assert [text for text in DIFFERENT if "is a different Python, without" not in said(text)] == []
    assert [text for text in UNTOLD if "overlay cannot tell which Python bash starts" not in said(text)] == []
    end = "would be patched in this environment; no other was checked"
    assert [text for text in NOT_CHECKED if f"{checked} {end}: a patched job" not in said(text)] == []
    # It says what it cannot tell, and what it has found.
    assert "because of `uv -v run`. What to do: put `overlay run` right before the Python" in said(
        "true || uv -v run x.py"
    )
    assert f"{checked}, `{worksite.folder}/bin/python` would be patched in this environment" in said(
        HEALTHY[3]
    )


def test_no_long_text_takes_long(worksite: Venv, tmp_path: Path) -> None:
    for text in (
        "x" * 300_000,
        "conda " * 50_000,
        "a/" * 150_000,
        "bash " * 60_000,
        "'" * 99_999,
        "PATH=" * 60_000,
    ):
        script = program(tmp_path / "long.sh", f"#!/bin/sh\necho ran\nexit\n: {text}\n")
        overlay_run(worksite, "--strict", "sh", script)  # which is stopped after two minutes


def test_what_a_script_is_given_is_no_part_of_it(worksite: Venv, other: Venv, tmp_path: Path) -> None:
    """It may be data. The log says that nothing else was checked."""
    own = program(tmp_path / "own.sh", "echo ran\n")
    for given in (["ray"], ["uv", "run"], ["--python", str(other.python)], [str(other.python), "x.py"]):
        done = overlay_run(worksite, "--strict", "sh", own, *given)
        assert (done.stdout, done.stderr) == ("ran\n", f"overlay: {CHECKED.format('sh')}")


def test_what_only_the_script_is_not_is_no_script(worksite: Venv, other: Venv, tmp_path: Path) -> None:
    """Its data on standard input, or in a file."""
    data = program(tmp_path / "data.jsonl", f'{{"text": "{other.python} x.py"}}')
    for words in (
        "bash -c 'echo ran' < DATA", "bash -ec 'echo ran' DATA", "bash --rcfile DATA -c 'echo ran'",
        "bash -O extglob +o posix -c 'echo ran' DATA",
    ):  # fmt: skip
        command = f"{worksite.python} -m overlay run --strict {words.replace('DATA', data)}"
        done = worksite.run(
            "-c", f"import os; os.execvp('bash', ['bash', '-c', {command!r}])", **worksite.on_path()
        )
        assert done.stdout == "ran\n", done.stderr


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


def test_what_can_be_read_only_once_is_left_to_the_shell(worksite: Venv, tmp_path: Path) -> None:
    command = f"{worksite.python} -m overlay run --strict bash"
    data = program(tmp_path / "data", "x")
    program(tmp_path / "read", "echo ran\n")
    for line in (
        f"{command} <(echo echo ran) {data}", f"echo echo ran | {command} -s {data}",
        f"{command} < {tmp_path}/read",
    ):  # fmt: skip
        done = worksite.run(
            "-c", "import os, sys; os.execvp('bash', ['bash', '-c', sys.argv[1]])", line, **worksite.on_path()
        )
        assert (done.stdout, done.returncode) == ("ran\n", 0), done.stderr
        assert "no other was checked; no script was read: a patched job" in done.stderr
    os.mkfifo(tmp_path / "fifo")
    script = program(tmp_path / "x.sh", "echo ran\n")
    done = overlay_run(worksite, "--strict", "bash", script, str(tmp_path / "fifo"))
    assert (done.stdout, "no script was read" in done.stderr) == ("ran\n", False)


def test_a_script_whose_first_line_names_nothing_is_run_by_a_shell(
    worksite: Venv, other: Venv, tmp_path: Path
) -> None:
    words = (program(tmp_path / "x.sh", 'A=(1); echo "ran $0 $1"\n'), "a b")
    done = overlay_run(worksite, "--strict", *words)
    assert (done.stdout, CHECKED.format(words[0]) in done.stderr) == (f"ran {words[0]} a b\n", True)
    program(tmp_path / "x.sh", f"{other.python} x.py\n")
    for before in ([], ["nohup"]):
        assert f"{other.python} is a different Python" in refused(worksite, "--strict", *before, *words)


def test_a_folder_that_is_gone_is_named(worksite: Venv, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    for start in ("overlay run bash -c 'echo ran'", "overlay run --pin x.lock python -c 1"):
        command = f"mkdir -p {gone}; cd {gone}; rmdir {gone}; exec {worksite.python} -m {start}"
        done = worksite.run(
            "-c", f"import os; os.execvp('bash', ['bash', '-c', {command!r}])", **worksite.on_path()
        )
        assert (done.stdout, done.returncode) == ("", 2)
        assert "not started: the current folder no longer exists: cd to one that does" in done.stderr


def test_the_script_that_a_shell_reads_is_read(worksite: Venv, other: Venv, tmp_path: Path) -> None:
    (tmp_path / "install").write_text(f"true || {other.python} x.py\n")
    (tmp_path / "data").write_text("x")
    (tmp_path / "below").mkdir()
    shutil.copy(tmp_path / "install", tmp_path / "below/found")
    path = f"{worksite.on_path()['PATH']}:{tmp_path}/below"
    for words in (
        "bash -eo pipefail install",
        "bash -- install",
        "bash install -c 4",
        "bash -noprofile -posix install",
        "bash --rcfile data install",
        "bash found data",
    ):
        done = worksite.run(
            "-c", "import os, sys; os.chdir(sys.argv[1]); os.execvp('bash', ['bash', '-c', sys.argv[2]])",
            str(tmp_path), f"{worksite.python} -m overlay run --strict {words}", PATH=path,
        )  # fmt: skip
        assert f"{other.python} is a different Python" in done.stderr, words


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
    finally:
        for pid in pids.read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
