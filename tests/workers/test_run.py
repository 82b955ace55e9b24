"""`overlay run` protects its user: what would not be patched is not started."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from worksite import PATCHED, PROBE, Venv

PACK = {"OVERLAY_PACKS": "acme"}
RAN = ("-c", "print('ran')")
#: What is said of a script of a strict job, the Pythons of which would be patched.
CHECKED = "of the Pythons that {} may start, `python`, `python3` would be patched; no other was checked\n"


def run(venv: Venv, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return venv.run("-m", "overlay", "run", *words, **{**venv.on_path(), **environ})


def refused(venv: Venv, *words: str, **environ: str) -> str:
    """Return what is said of a command that is not started, as its Python would not be patched."""
    done = run(venv, *words, **environ)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    return done.stderr


def program(path: Path, text: str) -> str:
    """Write a file that can be started, and return its path."""
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Venv:
    """Return another environment, in which there is no overlay."""
    return Venv(tmp_path_factory.mktemp("other") / "venv", linked=False)


def selected(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


#: What is selected along with any other patch.
COMPANIONS = ("megatron.agreement", "megatron.known-defects", "verl.agreement", "verl.known-defects")
SELECTED = "import overlay; print(*overlay.status().selection)"


def test_no_dashes_are_needed(worksite: Venv) -> None:
    for dashes in ([], ["--"]):
        done = run(worksite, "--patches", "acme/*", *dashes, "python", "-c", PROBE, **PACK)
        assert done.stdout.split()[-1] == PATCHED, done.stderr
    assert run(worksite, "python", "-c", "import sys; sys.exit(7)").returncode == 7
    # Whatever stands behind the command is its own, also what looks like an option of ours or a part of one.
    code = "import sys; print(*sys.argv[1:])"
    words = ["--p", "8", "--patches", "--pin", "--json", "--h", "--", "--strict", "-x"]
    assert selected(run(worksite, "python", "-c", code, *words)) == words


def test_the_off_switch_works_here_too(worksite: Venv) -> None:
    for options in ([], ["--strict"]):
        for said in ("0", " "):
            words = [*options, "--patches", "acme/*", "python", "-c", PROBE]
            done = run(worksite, *words, OVERLAY=said, **PACK)
            assert (done.returncode, done.stdout.split()[-1] == PATCHED) == (0, False), done.stderr
            assert f"overlay is off for the command, because OVERLAY={said!r} is set" in done.stderr
    done = run(worksite, "python", "-c", "print('ran')", OVERLAY="perhaps")
    assert (done.returncode, done.stdout) == (2, "")
    assert "the command was not started: OVERLAY='perhaps' is neither yes" in done.stderr


def test_an_option_is_not_shortened(worksite: Venv) -> None:
    done = run(worksite, "--patch", "acme/*", "python", "-c", "print('ran')", **PACK)
    assert (done.returncode, done.stdout) == (2, "")
    assert "unrecognized arguments: --patch" in done.stderr


@pytest.mark.parametrize(
    ("options", "environ", "words"),
    [
        (["--patches", "acme/fakeup.scal"], PACK, "names no patch; did you mean acme/fakeup.scale"),
        (["--patches", ""], PACK, "--patches is empty"),
        ([], {"OVERLAY_PATCHES": "verl.nothing"}, "'verl.nothing' names no patch"),
        ([], {"OVERLAY_STRICT": "perhaps"}, "OVERLAY_STRICT='perhaps'"),
        ([], {"OVERLAY_LOG": "loud"}, "OVERLAY_LOG='loud'"),
        ([], {"OVERLAY_PACKS": "acme2"}, "no pack 'acme2' is installed; there are: acme"),
        (["--pin", "nothing.lock"], {}, "there is no lock "),
        (["--pin", "sha256:12"], {}, "64 hexadecimal digits"),
        (["--strict"], {"OVERLAY_PATCHES": "x"}, "names no patch"),
    ],
)
def test_what_is_wrong_starts_nothing_and_is_status_2(
    worksite: Venv, options: list[str], environ: dict[str, str], words: str
) -> None:
    done = run(worksite, *options, "python", "-c", "print('ran')", **environ)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert words in done.stderr
    assert done.stderr.startswith("overlay: the command was not started: ")
    assert done.stderr.count("\n") == 1


def test_a_drop_alone_and_every_separator(worksite: Venv) -> None:
    everything = selected(run(worksite, "python", "-c", SELECTED))
    for words in (["--patches", "-verl.sft-balance"], ["--patches=-verl.sft-balance"]):
        found = selected(run(worksite, *words, "python", "-c", SELECTED))
        assert found == [name for name in everything if name != "verl.sft-balance"]
    both = ["megatron.grad-norm", "megatron.recompute"]
    for separator in (",", " ", ", "):
        text = separator.join(both)
        found = selected(run(worksite, "--patches", text, "python", "-c", SELECTED))
        assert found == sorted([*both, *COMPANIONS])
    said = " ".join(run(worksite, "--help").stdout.split())
    assert "ids, globs, all, none, and -ID to drop one, separated by commas or spaces" in said


def test_another_python_is_not_started_unarmed(worksite: Venv, other: Venv) -> None:
    script = program(other.folder / "bin/trainer", f"#!{other.python}\nprint('ran')\n")
    text = f"#!/bin/sh\n'''exec' \"{other.python}\" \"$0\" \"$@\"\n' '''\nprint('ran')\n"
    long = program(other.folder / "bin/long", text)
    python = str(other.python)
    for words in ([python, *RAN], ["env", "A=1", python, *RAN], ["nohup", python, *RAN], [script], [long]):
        said = refused(worksite, *words)
        assert f"{python} is a different Python, without overlay: install overlay there" in said, words
        assert f"have the job start {worksite.python}," in said


def test_a_script_of_this_python_is_started(worksite: Venv) -> None:
    program(worksite.folder / "bin/mine", f"#!{worksite.python}\n{PROBE}\n")
    for words in (["mine"], ["env", "A=1", "mine"]):
        done = run(worksite, *words, OVERLAY_PATCHES="acme/*", **PACK)
        assert done.stdout.split()[-1] == PATCHED, done.stderr


def test_an_interpreter_that_reads_no_start_up_files_is_refused(worksite: Venv) -> None:
    text = f"#!/usr/bin/env -S {worksite.python} -S\nprint('ran')\n"
    script = program(worksite.folder / "unarmed.py", text)
    python = [["python", *options, *RAN] for options in (["-S"], ["-uS"], ["-W", "ignore", "-S"])]
    for words in (*python, ["--patches", "none", script]):
        assert "reads no start-up files: leave out -S" in refused(worksite, *words)
    # Behind -c and -m, and behind the script, it is another's option.
    assert selected(run(worksite, "python", "-I", *RAN, "-S")) == ["ran"]


def test_variables_that_env_takes_away_start_nothing(worksite: Venv) -> None:
    for words in (["/usr/bin/env", "-i"], ["env", "-u", "OVERLAY"], ["nohup", "env", "-i", "A=1"]):
        said = refused(worksite, *words, str(worksite.python), "-c", PROBE)
        assert f"{' '.join(words[-2:])} {worksite.python} does not get" in said
        path = f"PATH={worksite.on_path()['PATH']}"
        assert "does not get the variables" in refused(
            worksite, "--strict", *words, path, "sh", "-c", "echo ran"
        )


def test_of_a_shell_each_python_is_asked_and_it_is_started_unless_the_job_is_strict_or_pinned(
    worksite: Venv, other: Venv, tmp_path: Path
) -> None:
    for held in ([], ["--strict"]):
        done = run(worksite, *held, "sh", "-c", "echo ran")
        assert (done.stdout, done.stderr) == ("ran\n", f"overlay: {CHECKED.format('sh')}")
    # A script that starts `python3` gets another one than a script that starts `python`.
    program(tmp_path / "python3", f'#!/bin/sh\nexec {other.python} "$@"\n')
    file = str(tmp_path / "overlay.lock")
    worksite.read("lock", "--file", file)
    path = worksite.on_path()["PATH"]
    for name, environ in (("python", other.on_path()), ("python3", {"PATH": f"{tmp_path}:{path}"})):
        done = run(worksite, "sh", "-c", "echo ran", **environ)
        assert (done.stdout, done.stderr.count("\n")) == ("ran\n", 1)
        said = f"sh may start any Python, and `{name}` would run without patches: "
        assert done.stderr.startswith(f"overlay: the command is started anyway: {said}")
        for held in (["--strict"], ["--pin", file]):
            why = refused(worksite, *held, "sh", "-c", "echo ran", **environ)
            assert f"not started, because the job is strict or pinned: {said}" in why


def test_of_a_shell_that_a_launcher_starts_each_python_is_asked(worksite: Venv, other: Venv) -> None:
    launcher = program(worksite.folder / "bin/torchrun", f"#!{worksite.python}\nprint('ran')\n")
    script = program(worksite.folder / "rank.sh", "#!/bin/sh\n")
    commands = (["sh", script], ["--log-dir", "x", script], ["sh", "-c", "python x.py"], ["sh", "-x", script])
    for command in commands:
        words = [launcher, "--no-python", *command]
        assert CHECKED.format(command[0] if command[0] == "sh" else script) in (
            run(worksite, "--strict", *words).stderr
        )
        said = refused(worksite, "--strict", *words, **other.on_path())
        assert "may start any Python, and `python` would run without patches: " in said


def test_a_launcher_that_may_have_a_python_of_its_own_is_started_only_if_neither_strict_nor_pinned(
    worksite: Venv, other: Venv, tmp_path: Path
) -> None:
    """As `uv run`, `srun` and `docker run` may, which no look at the words can tell."""
    (tmp_path / "uv").symlink_to(str(shutil.which("env")))
    launcher = str(tmp_path / "uv")
    file = str(tmp_path / "overlay.lock")
    worksite.read("lock", "--file", file)
    said = f"overlay cannot tell which Python {launcher} starts. What to do: put `overlay run` behind it"
    for before in ([], ["nohup"], ["env", "-C", str(tmp_path)]):
        words = [*before, launcher, "python", *RAN]
        done = run(worksite, *words)
        assert (done.stdout, done.stderr.count("\n")) == ("ran\n", 1), done.stderr
        assert done.stderr.startswith(f"overlay: the command is started anyway: {said}")
        for held in (["--strict"], ["--pin", file]):
            why = refused(worksite, *held, *words)
            assert f"not started, because the job is strict or pinned: {said}" in why
    # What it says to do.
    words = [launcher, str(worksite.python), "-m", "overlay", "run", "--strict", "python", *RAN]
    done = worksite.run("-c", f"import os; os.execv({launcher!r}, {words!r})", **worksite.on_path())
    assert (done.stdout, done.stderr) == ("ran\n", "")


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
    ". FOLDER/conda/bin/activate good && true", "python conda/run.py", "uv sync; python run.py",
    'V=OURS; "$V"/bin/python3 -V', '$(dirname "$(which python)")/../bin/python3 -V', "OURS/*/python3 -V",
    "source OURS/bin/activate 2>/dev/null || true", "test -f OURS/bin/activate -a -d /",
    ". OURS/bin/activate x", "source activate x", "PATH=FOLDER/conda/bin:$PATH; source activate base",
    'V=OURS; export PATH="$V/bin:/usr/bin:/bin"', ". FOLDER/conda/bin/activate base",
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
    ". FOLDER/conda/bin/activate mine", "PATH=/nothing:OTHER/bin:OURS/bin",
    "export PATH=OTHER/bin${PATH:+:${PATH}}", "true || env PATH=OTHER/bin python x.py",
    "cat <<X\nOTHER/bin/python x.py\nX", "PATH=FOLDER/conda/bin:$PATH; source activate mine",
)  # fmt: skip
UNTOLD = (
    "source ~/.bashrc; conda activate x", "~/conda/bin/conda run -n x python x.py",
    "pyenv shell 3.10", "export PATH=FOLDER/conda/bin:$PATH; source activate x", "source FOLDER/conda/bin/activate x", "true || BINS/uv run x.py",
    'L=(python3)\n[ -n "$X" ] && L=(uv run python3)\ntrue || "${L[@]}" x.py',
    "true || uv -v run x.py", "printf x | uv run x.py", "true || pipenv run python3",
    ". FOLDER/conda.sh; true || conda activate x", 'eval "$($UNKNOWN/conda hook)"; true || conda activate x',
)  # fmt: skip
#: What a search of the text doesn't find. The log says that nothing else was checked.
NOT_CHECKED = (
    "true || . $NAME/bin/activate", "B=BINS; true || $B/accelerate launch", "cd OTHER; . bin/activate",
    "make", "ssh host x.py", "alias python=$X",
)  # fmt: skip
#: The same, by what may not be there.
PERHAPS = ("poetry run python x.py", "~/.local/bin/uv run x.py", "module load python/3.10"
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
    (tmp_path / "py@3").symlink_to(other.folder)
    conda = {place: worksite.folder / place for place in ("bin", "lib", "pyvenv.cfg")}
    conda |= {"envs/mine": other.folder, "envs/good": worksite.folder}
    (tmp_path / "conda/envs").mkdir(parents=True)
    for place, folder in conda.items():
        (tmp_path / "conda" / place).symlink_to(folder)
    for name, venv in (("ours", worksite), ("other", other)):
        (venv.folder / "bin/activate").write_text("")
        (tmp_path / name).symlink_to(venv.folder)
    (tmp_path / "conda.sh").write_text("")
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
    end = "would be patched; no other was checked"
    assert [text for text in NOT_CHECKED if f"{checked} {end}\n" not in said(text)] == []
    assert [text for text in PERHAPS if f"{end} (such as that of `" not in said(text)] == []
    # It says what it cannot tell, and what it has found.
    assert "because of `uv -v run`. What to do: put `overlay run` into the script" in said(
        "true || uv -v run x.py"
    )
    assert f"{checked}, `{worksite.folder}/bin/python` would be patched" in said(HEALTHY[3])


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
        run(worksite, "--strict", "sh", script)  # which is stopped after two minutes


def test_what_only_the_script_is_not_is_no_script(worksite: Venv, other: Venv, tmp_path: Path) -> None:
    """Its data on standard input, or in a file."""
    data = program(tmp_path / "data.jsonl", f'{{"text": "{other.python} x.py"}}')
    for words in ("bash -c 'echo ran' < DATA", "bash -ec 'echo ran' DATA"):
        command = f"{worksite.python} -m overlay run --strict {words.replace('DATA', data)}"
        done = worksite.run(
            "-c", f"import os; os.execvp('bash', ['bash', '-c', {command!r}])", **worksite.on_path()
        )
        assert done.stdout == "ran\n", done.stderr


def test_the_command_gets_what_it_would_get_without(worksite: Venv) -> None:
    """Python itself ignores signals, and sets a locale where there is none."""
    ignored = ["grep", "^SigIgn", "/proc/self/status"]
    environ = {"PATH": worksite.on_path()["PATH"], "HOME": "/"}
    for words in (ignored, ["env"], ["bash", "-c", "yes | head -n 1; echo ${PIPESTATUS[0]}"]):
        plain, ours = (
            subprocess.run(
                [*before, *words],
                env=environ,
                cwd=worksite.folder,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            ).stdout.splitlines()
            for before in ([], [str(worksite.python), "-m", "overlay", "run"])
        )
        assert [line for line in ours if not line.startswith("OVERLAY")] == plain


def test_a_strict_job_does_not_depend_on_whether_a_remark_can_be_written(worksite: Venv) -> None:
    for where in ("2>&-", "2>/dev/full"):
        command = f"{worksite.python} -m overlay run --strict bash -c 'exit 7' {where}"
        done = worksite.run(
            "-c", f"import os; os.execvp('bash', ['bash', '-c', {command!r}])", **worksite.on_path()
        )
        assert done.returncode == 7, where


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


def test_an_installation_without_a_start_up_file_is_told_so_of_a_script_too(worksite: Venv) -> None:
    file = worksite.site / "overlay-startup.pth"
    hidden = file.rename(worksite.folder / "hidden")
    try:
        for words in (["bash", "-c", "echo ran"], ["env", "A=1", str(worksite.python), *RAN]):
            assert "no overlay-startup.pth in " in refused(worksite, "--strict", *words)
    finally:
        hidden.rename(file)


def test_what_can_be_read_only_once_is_left_to_the_shell(worksite: Venv, tmp_path: Path) -> None:
    command = f"{worksite.python} -m overlay run --strict bash"
    done = worksite.run(
        "-c", "import os, sys; os.execvp('bash', ['bash', '-c', sys.argv[1]])",
        f"{command} <(echo echo ran)", **worksite.on_path(),
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("ran\n", 0), done.stderr
    os.mkfifo(tmp_path / "fifo")
    script = program(tmp_path / "x.sh", "echo ran\n")
    assert run(worksite, "--strict", "bash", script, str(tmp_path / "fifo")).stdout == "ran\n"


def test_the_script_that_a_shell_reads_is_read(worksite: Venv, other: Venv, tmp_path: Path) -> None:
    """Its standard input, or a file."""
    (tmp_path / "install").write_text(f"true || {other.python} x.py\n")
    for words in (
        "bash < install",
        "bash -s x < install",
        "bash -eo pipefail install",
        "bash -- install",
        "bash install -c 4",
    ):
        done = worksite.run(
            "-c", "import os, sys; os.chdir(sys.argv[1]); os.execvp('bash', ['bash', '-c', sys.argv[2]])",
            str(tmp_path), f"{worksite.python} -m overlay run --strict {words}", **worksite.on_path(),
        )  # fmt: skip
        assert f"{other.python} is a different Python" in done.stderr, words


@pytest.mark.parametrize(
    ("words", "elsewhere"),
    [
        ("conda run -n x python", True),
        ("sky launch job.yaml", True),
        ("ray exec cluster.yaml", True),
        ("ray job submit -- python x.py", False),
        ("deepspeed --hostfile=/etc/hostname x.py", True),
        ("nohup deepspeed -H /etc/hostname x.py", True),
        ("deepspeed --hostfile /etc/hostname --no_ssh x.py", False),
        ("deepspeed --hostfile none x.py", False),
        ("deepspeed x.py", False),
        ("deepspeed x.py -H", False),
    ],
)
def test_a_launcher_that_is_a_python_of_ours_may_start_the_job_elsewhere(
    words: str, elsewhere: bool, worksite: Venv, tmp_path: Path
) -> None:
    name = next(word for word in words.split() if word != "nohup")
    program(tmp_path / name, f"#!{worksite.python}\nprint('ran')\n")
    path = f"{tmp_path}:{worksite.on_path()['PATH']}"
    done = run(worksite, "--strict", *words.split(), PATH=path)
    assert done.stdout == ("" if elsewhere else "ran\n"), done.stderr
    assert (f"overlay cannot tell which Python {name} starts" in done.stderr) == elsewhere


def test_a_launcher_of_this_machine_hands_on_the_path(worksite: Venv, other: Venv, tmp_path: Path) -> None:
    done = run(worksite, "--strict", "nsys", str(other.python), PATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (127, "overlay: nsys: command not found\n")
    program(tmp_path / "nsys", '#!/bin/sh\nshift 3\nexec "$@"\n')
    path = {"PATH": f"{tmp_path}:{worksite.on_path()['PATH']}"}
    words = ["nsys", "profile", "--cuda-memory-usage", "true"]
    assert run(worksite, "--strict", *words, "python", *RAN, **path).stdout == "ran\n"
    assert "is a different Python, without" in refused(worksite, *words, str(other.python), *RAN, **path)


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
    done = run(worksite, "--strict", *words, **environ)
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
    assert "ran" in run(worksite, "--strict", "bash", script, HOME=str(tmp_path)).stdout


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


def test_env_finds_the_python_by_the_path_that_it_sets(worksite: Venv, other: Venv) -> None:
    for first, second in ((worksite, other), (other, worksite)):
        words = ["env", f"PATH={second.on_path()['PATH']}", "python", *RAN]
        done = run(worksite, "--strict", *words, PATH=first.on_path()["PATH"])
        assert (done.stdout == "ran\n") == (second is worksite), done.stderr
        if second is other:
            assert f"{other.folder}/bin/python is a different Python, without overlay" in done.stderr


def test_a_word_that_starts_nothing_is_not_asked(worksite: Venv, other: Venv) -> None:
    script = program(worksite.folder / "job.py", "print('ran')\n")
    words = [str(worksite.python), script, "--langs", "java", "python", "--no-p", "test"]
    done = run(worksite, "--strict", *words, **other.on_path())
    assert (done.stdout, done.stderr) == ("ran\n", "")


def test_an_empty_command_is_told_so(worksite: Venv) -> None:
    done = run(worksite, "", "python", *RAN)
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no COMMAND" in done.stderr


def test_a_python_among_the_words_of_a_launcher_is_asked_too(worksite: Venv, other: Venv) -> None:
    launcher = program(worksite.folder / "bin/accelerate", f"#!{worksite.python}\nprint('ran')\n")
    for words in (["launch", "--no_python"], ["exec"]):
        command = [launcher, *words, str(other.python), "x.py"]
        what = f"{launcher} may start {other.python}, which would run without patches: {other.python} is "
        assert f"strict or pinned: {what}" in refused(worksite, "--strict", *command)
        assert f"the command is started anyway: {what}" in run(worksite, *command).stderr
        assert run(worksite, "--strict", launcher, *words, "python", "x.py").stdout == "ran\n"


def test_a_pin_brings_its_own_selection(worksite: Venv, tmp_path: Path) -> None:
    file = str(tmp_path / "overlay.lock")
    for chosen in ("acme/fakeup.scale,-megatron.agreement", "none", "all"):
        worksite.read("lock", "--update", "--file", file, "--patches", chosen, **PACK)
        expected = selected(run(worksite, "--patches", chosen, "python", "-c", SELECTED, **PACK))
        # Nor need anybody say which packs it takes.
        assert selected(run(worksite, "--pin", file, "python", "-c", SELECTED)) == expected, chosen
        by_variable = run(worksite, "python", "-c", SELECTED, OVERLAY_PIN=file)
        assert selected(by_variable) == expected, chosen


def test_a_pin_and_another_selection_are_refused_with_the_right_advice(
    worksite: Venv, tmp_path: Path
) -> None:
    file = str(tmp_path / "overlay.lock")
    worksite.read("lock", "--file", file, "--patches", "megatron.recompute")
    done = run(worksite, "--pin", file, "--patches", "all", "python", "-c", "print('ran')")
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert len(lines) <= 16
    assert lines[-2].endswith("more")
    assert "the selection differs: OVERLAY_PATCHES='megatron.recompute' is what was locked" in lines[-1]
    # The way out is one.
    assert selected(
        run(worksite, "--pin", file, "--patches", "megatron.recompute", "python", "-c", SELECTED)
    ) == sorted(["megatron.recompute", *COMPANIONS])


def test_a_pin_that_this_installation_violates_is_status_2(worksite: Venv, tmp_path: Path) -> None:
    file = tmp_path / "overlay.lock"
    worksite.read("lock", "--file", str(file), "--patches", "acme/*", **PACK)
    pack = worksite.site / "acme_overlay/patches/fakeup/scale.py"
    before = pack.read_text()
    marker = tmp_path / "ran"
    pack.write_text(f"open({str(marker)!r}, 'w')\n{before}")
    try:
        done = run(worksite, "--pin", str(file), "python", "-c", "print('ran')")
    finally:
        pack.write_text(before)
    assert (done.returncode, done.stdout) == (2, "")
    assert "pack acme: content: locked " in done.stderr
    assert not marker.exists()


def test_it_is_started_by_nobody_else(worksite: Venv) -> None:
    # It becomes the command: signals and the terminal are the command's.
    code = "import os; print(os.getpid() == int(os.environ['SHELL_PID']))"
    shell = f'SHELL_PID=$$ exec "{worksite.python}" -m overlay run "{worksite.python}" -c "{code}"'
    done = worksite.run("-c", f"import os; os.execvp('sh', ['sh', '-c', {shell!r}])")
    assert done.stdout.strip() == "True", done.stderr
