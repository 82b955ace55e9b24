"""`overlay run` protects its user: what would not be patched is not started."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from worksite import PATCHED, PROBE, RAN, Venv, overlay_run, program, refused

PACK = {"OVERLAY_PACKS": "acme"}


def selected(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


#: What is selected along with any other patch.
COMPANIONS = ("megatron.agreement", "megatron.known-defects", "verl.agreement", "verl.known-defects")
SELECTED = "import overlay; print(*overlay.status().selection)"


def test_no_dashes_are_needed(worksite: Venv) -> None:
    for dashes in ([], ["--"]):
        done = overlay_run(worksite, "--patches", "acme/*", *dashes, "python", "-c", PROBE, **PACK)
        assert done.stdout.split()[-1] == PATCHED, done.stderr
    assert overlay_run(worksite, "python", "-c", "import sys; sys.exit(7)").returncode == 7
    # Whatever stands behind the command is its own, also what looks like an option of ours or a part of one.
    code = "import sys; print(*sys.argv[1:])"
    words = ["--p", "8", "--patches", "--pin", "--json", "--h", "--", "--strict", "-x"]
    assert selected(overlay_run(worksite, "python", "-c", code, *words)) == words


def test_the_off_switch_works_here_too(worksite: Venv) -> None:
    for options in ([], ["--strict"]):
        for said in ("0", " "):
            words = [*options, "--patches", "acme/*", "python", "-c", PROBE]
            done = overlay_run(worksite, *words, OVERLAY=said, **PACK)
            assert (done.returncode, done.stdout.split()[-1] == PATCHED) == (0, False), done.stderr
            assert f"overlay is off for the command, because OVERLAY={said!r} is set" in done.stderr
    done = overlay_run(worksite, "python", "-c", "print('ran')", OVERLAY="perhaps")
    assert (done.returncode, done.stdout) == (2, "")
    assert "the command was not started: OVERLAY='perhaps' is neither yes" in done.stderr


def test_an_option_is_not_shortened(worksite: Venv) -> None:
    done = overlay_run(worksite, "--patch", "acme/*", "python", "-c", "print('ran')", **PACK)
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
    done = overlay_run(worksite, *options, "python", "-c", "print('ran')", **environ)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert words in done.stderr
    assert done.stderr.startswith("overlay: the command was not started: ")
    assert done.stderr.count("\n") == 1


def test_a_drop_alone_and_every_separator(worksite: Venv) -> None:
    everything = selected(overlay_run(worksite, "python", "-c", SELECTED))
    for words in (["--patches", "-verl.sft-balance"], ["--patches=-verl.sft-balance"]):
        found = selected(overlay_run(worksite, *words, "python", "-c", SELECTED))
        assert found == [name for name in everything if name != "verl.sft-balance"]
    both = ["megatron.grad-norm", "megatron.recompute"]
    for separator in (",", " ", ", "):
        text = separator.join(both)
        found = selected(overlay_run(worksite, "--patches", text, "python", "-c", SELECTED))
        assert found == sorted([*both, *COMPANIONS])
    said = " ".join(overlay_run(worksite, "--help").stdout.split())
    assert "ids, globs, all, none, and -ID to drop one, separated by commas or spaces" in said


def test_another_python_is_not_started_unarmed(worksite: Venv, other: Venv, tmp_path: Path) -> None:
    script = program(other.folder / "bin/trainer", f"#!{other.python}\nprint('ran')\n")
    text = f"#!/bin/sh\n'''exec' \"{other.python}\" \"$0\" \"$@\"\n' '''\nprint('ran')\n"
    long = program(other.folder / "bin/long", text)
    text = f"#!/bin/sh\n'''exec' \"{other.python}\" \"$0\" \"$@\" #'''\nprint('ran')\n"  # as conda writes it
    conda = program(other.folder / "bin/conda-long", text)
    python = str(other.python)
    program(tmp_path / "idle", "#!/bin/sh\n")  # Python comes with a program of that name
    path = {"PATH": f"{tmp_path}:{worksite.on_path()['PATH']}"}
    for words in (
        [python, *RAN], ["env", "A=1", python, *RAN], ["nohup", python, *RAN], [script], [long], [conda],
        ["ionice", "-c", "idle", python, *RAN],
    ):  # fmt: skip
        said = refused(worksite, "--strict", *words, **path)
        assert f"{python} is a different Python, without overlay: install overlay there" in said, words
        assert f"have the job start {worksite.python}," in said


def test_a_launcher_of_another_python_is_told_by_its_first_line(
    worksite: Venv, other: Venv, tmp_path: Path
) -> None:
    """As that of an image, behind an environment that has none: the PATH is right."""
    text = "import sys\nfrom torch.distributed.run import main\n"
    program(tmp_path / "torchrun", f"#!{other.python}\n{text}")
    path = {"PATH": f"{worksite.on_path()['PATH']}:{tmp_path}"}
    what = (
        "names it: take it off the PATH, install torch where overlay is, or start it by "
        "`python -m torch.distributed.run`"
    )
    for words in (["nohup", "torchrun", "x.py"], ["sh", "-c", "torchrun x.py"]):
        assert what in refused(worksite, "--strict", *words, **path)
    check = worksite.read_failing("doctor", OVERLAY="1", **path)["checks"]
    found = {one["name"]: one["answer"] for one in check}
    assert (found["python"], found["torchrun"]) == ("yes", "no")


def test_a_shim_of_pyenv_starts_what_lies_beside_the_python_that_it_chooses(
    worksite: Venv, other: Venv, tmp_path: Path
) -> None:
    (tmp_path / "shims").mkdir()
    path = {"PATH": f"{worksite.on_path()['PATH']}:{tmp_path}/shims"}
    said = "cannot tell which Python trains starts"
    for venv in (None, other, worksite):
        python = venv.python if venv else "no-such-python"
        program(tmp_path / "shims/trains", f"#!/bin/sh\nexec {python} -c \"print('ran')\"\n")
        if venv:
            program(tmp_path / "shims/python", f'#!/bin/sh\nexec {python} "$@"\n')
        if venv is worksite:
            assert overlay_run(worksite, "--strict", "trains", **path).stdout == "ran\n"
        else:
            assert said in refused(worksite, "--strict", "trains", **path)
        said = f"{other.python} is a different Python, without overlay"


def test_a_script_of_this_python_is_started(worksite: Venv) -> None:
    program(worksite.folder / "bin/mine", f"#!{worksite.python}\n{PROBE}\n")
    beside = '"$(dirname -- "$(realpath -- "$0")")"'  # as in an environment that can be moved
    lines = f"#!/bin/sh\n'''exec' {beside}/'python' \"$0\" \"$@\"\n' '''\n{PROBE}\n"
    program(worksite.folder / "bin/moved", lines)
    for words in (["mine"], ["env", "A=1", "mine"], ["moved"]):
        done = overlay_run(worksite, *words, OVERLAY_PATCHES="acme/*", **PACK)
        assert done.stdout.split()[-1] == PATCHED, done.stderr


def test_an_interpreter_that_reads_no_start_up_files_is_refused(worksite: Venv) -> None:
    text = f"#!/usr/bin/env -S A=1 {worksite.python} -S\nprint('ran')\n"
    script = program(worksite.folder / "unarmed.py", text)
    python = [
        ["python", *options, *RAN]
        for options in (["-S"], ["-uS"], ["-W", "ignore", "-S"], ["--check-hash-based-pycs", "always", "-S"])
    ]
    for words in (*python, ["--patches", "none", script]):
        assert "reads no start-up files: leave out -S" in refused(worksite, *words)
    # Behind -c and -m, and behind the script, it is another's option.
    assert selected(overlay_run(worksite, "python", "-I", *RAN, "-S")) == ["ran"]


def test_what_env_is_told_in_a_first_line_counts(worksite: Venv, other: Venv, tmp_path: Path) -> None:
    words = program(tmp_path / "x", "#!/usr/bin/env -S OVERLAY=0 python\n")
    assert "env OVERLAY=0 python does not get the variables OVERLAY" in refused(worksite, "--strict", words)
    for first in ("-S -i {}", "-S -u OVERLAY {}", "-S-i {}", "-iS {}", "-S -i ${{TOLD}}"):
        program(tmp_path / "x", f"#!/usr/bin/env {first.format(worksite.python)}\n")
        said = refused(worksite, "--strict", words, TOLD=str(worksite.python))
        assert "python does not get the variables OVERLAY" in said
    program(tmp_path / "x", f"#!/usr/bin/env -S PATH={other.on_path()['PATH']} python\n")
    assert f"{other.folder}/bin/python is a different Python" in refused(worksite, "--strict", words)
    program(tmp_path / "x", "#!/usr/bin/env -S A='1 2' python -u\nprint('ran')\n")
    assert overlay_run(worksite, "--strict", words).stdout == "ran\n"


def test_a_program_whose_interpreter_is_gone_is_told_so(worksite: Venv, tmp_path: Path) -> None:
    for first in ("/not/there/bin/python", "/bin/bash\r"):
        words = program(tmp_path / "trainer", f"#!{first}\n")
        done = overlay_run(worksite, "--strict", words)
        said = f"overlay: {words}: its first line names {first!r}, which is not there\n"
        assert (done.returncode, done.stdout, done.stderr) == (127, "", said)


def test_variables_that_env_takes_away_start_nothing(worksite: Venv) -> None:
    for words in (
        ["/usr/bin/env", "-i"], ["env", "-u", "OVERLAY"], ["nohup", "env", "-i", "A=1"],
        ["env", "-i", "PYTHONNOUSERSITE=1"],  # where nobody has installed anything
    ):  # fmt: skip
        said = refused(worksite, *words, str(worksite.python), "-c", PROBE)
        assert f"{' '.join(words[-2:])} {worksite.python} does not get" in said
        path = f"PATH={worksite.on_path()['PATH']}"
        assert "does not get the variables" in refused(
            worksite, "--strict", *words, path, "sh", "-c", "echo ran"
        )


def test_a_launcher_that_may_have_a_python_of_its_own_is_started_only_if_neither_strict_nor_pinned(
    worksite: Venv, other: Venv, tmp_path: Path
) -> None:
    """As `uv run`, `srun` and `docker run` may, which no look at the words can tell."""
    (tmp_path / "uv").symlink_to(str(shutil.which("env")))
    launcher = str(tmp_path / "uv")
    program(tmp_path / "app.pex", f"#!{worksite.python}\n")  # which may go on in another Python
    assert "cannot tell which Python" in refused(worksite, "--strict", str(tmp_path / "app.pex"))
    file = str(tmp_path / "overlay.lock")
    worksite.read("lock", "--file", file)
    said = f"overlay cannot tell which Python {launcher} starts. What to do: move `overlay run` behind it"
    for before in ([], ["nohup"], ["env", "-C", str(tmp_path)]):
        words = [*before, launcher, "python", *RAN]
        done = overlay_run(worksite, *words)
        assert (done.stdout, done.stderr.count("\n")) == ("ran\n", 1), done.stderr
        assert done.stderr.startswith(f"overlay: the command is started anyway: {said}")
        for held, what in ((["--strict"], "OVERLAY_STRICT=1"), (["--pin", file], f"OVERLAY_PIN={file}")):
            why = refused(worksite, *held, *words)
            assert f"not started, because the job is strict or pinned: {said}" in why
            assert re.search(rf"or set OVERLAY=1( OVERLAY_PATCHES=\S*)? {re.escape(what)} instead", why)
    # What it says to do.
    words = [launcher, str(worksite.python), "-m", "overlay", "run", "--strict", "python", *RAN]
    done = worksite.run("-c", f"import os; os.execv({launcher!r}, {words!r})", **worksite.on_path())
    assert (done.stdout, done.stderr) == ("ran\n", "")


def test_the_command_gets_what_it_would_get_without(worksite: Venv) -> None:
    """Python itself ignores signals, and sets a locale where there is none."""
    ignored = ["grep", "^SigIgn", "/proc/self/status"]
    of_locale = ["env", "LC_CTYPE=C", str(worksite.python), "-m", "overlay", "run", "env"]
    assert "LC_CTYPE=C\n" in worksite.run("-c", f"import os; os.execvp('env', {of_locale!r})").stdout
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


def test_an_installation_without_a_start_up_file_is_told_so_of_a_script_too(worksite: Venv) -> None:
    file = worksite.site / "overlay-startup.pth"
    hidden = file.rename(worksite.folder / "hidden")
    try:
        for words in (["bash", "-c", "echo ran"], ["env", "A=1", str(worksite.python), *RAN]):
            assert "no overlay-startup.pth in " in refused(worksite, "--strict", *words)
    finally:
        hidden.rename(file)


@pytest.mark.parametrize(
    ("words", "elsewhere"),
    [
        ("conda run -n x python", True),
        ("sky launch job.yaml", True),
        ("jupyter run --kernel other x.py", True),
        ("ray exec cluster.yaml", True),
        ("ray job submit -- python x.py", False),
        ("modal run --detach x.py", True),
        ("serve deploy app.yaml", True),
        ("serve run x:app", False),
        ("hf jobs run image python x.py", True),
        ("hf download model", False),
        ("deepspeed --hostfile=/etc/hostname x.py", True),
        ("nohup deepspeed -H /etc/hostname x.py", True),
        ("deepspeed --hostfile /etc/hostname --no_ssh x.py", False),
        ("deepspeed --hostfile none x.py", False),
        ("deepspeed x.py", False),
        ("deepspeed x.py -H", False),
        ("ds --hostfile /etc/hostname x.py", True),
        ("mpirun -H a,b python x.py", True),
        ("deepspeed --force_multi x.py", True),
        ("accelerate-launch --deepspeed_hostfile /etc/hostname x.py", True),
    ],
)
def test_a_launcher_that_is_a_python_of_ours_may_start_the_job_elsewhere(
    words: str, elsewhere: bool, worksite: Venv, tmp_path: Path
) -> None:
    name = next(word for word in words.split() if word != "nohup")
    program(tmp_path / name, f"#!{worksite.python}\nprint('ran')\n")
    path = f"{tmp_path}:{worksite.on_path()['PATH']}"
    done = overlay_run(worksite, "--strict", *words.split(), PATH=path)
    assert done.stdout == ("" if elsewhere else "ran\n"), done.stderr
    assert (f"overlay cannot tell which Python {name} starts" in done.stderr) == elsewhere
    advice = "and set in that file (without quotes) and in the environment: OVERLAY=1 OVERLAY_STRICT=1\n"
    ways_out = advice in done.stderr, "move `overlay run` behind it" in done.stderr
    hosts = name in ("accelerate-launch", "deepspeed", "ds")  # not `mpirun -H`
    assert ways_out == (elsewhere and hosts, elsewhere and not hosts)


def test_a_launcher_that_is_a_module_may_start_the_job_elsewhere(worksite: Venv) -> None:
    for options in (["-m", "uv"], ["-u", "-m", "uv"], ["-um", "uv"], ["-W", "ignore", "-Xdev", "-muv"]):
        said = refused(worksite, "--strict", "python", *options, "run", "x.py")
        assert "overlay cannot tell which Python `python -m uv` starts" in said
    assert overlay_run(worksite, "--strict", "python", *RAN, "-m", "uv").stdout == "ran\n"
    hosts = str(worksite.folder / "pyvenv.cfg")
    for module in ("deepspeed.launcher.runner", "accelerate.commands.launch"):
        said = refused(worksite, "--strict", "python", "-m", module, "--deepspeed_hostfile", hosts, "x.py")
        assert f"cannot tell which Python `python -m {module}` starts" in said


def test_a_launcher_that_is_a_shell_script_may_too(worksite: Venv, tmp_path: Path) -> None:
    program(tmp_path / "pyenv", "#!/bin/sh\necho ran\n")
    path = f"{tmp_path}:{worksite.on_path()['PATH']}"
    said = refused(worksite, "--strict", "pyenv", "exec", "python", "x.py", PATH=path)
    assert "overlay cannot tell which Python pyenv starts" in said


def test_a_launcher_of_this_machine_hands_on_the_path(worksite: Venv, other: Venv, tmp_path: Path) -> None:
    done = overlay_run(worksite, "--strict", "nsys", str(other.python), PATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (127, "overlay: nsys: command not found\n")
    program(tmp_path / "nsys", '#!/bin/sh\nshift 3\nexec "$@"\n')
    path = {"PATH": f"{tmp_path}:{worksite.on_path()['PATH']}"}
    words = ["nsys", "profile", "--cuda-memory-usage", "true"]
    assert overlay_run(worksite, "--strict", *words, "python", *RAN, **path).stdout == "ran\n"
    assert "is a different Python, without" in refused(worksite, *words, str(other.python), *RAN, **path)


def test_env_finds_what_it_starts_by_the_path_that_it_sets(
    worksite: Venv, other: Venv, tmp_path: Path
) -> None:
    paths = {}
    for venv in (worksite, other):
        folder = tmp_path / venv.folder.parent.name
        folder.mkdir()
        program(folder / "torchrun", f"#!{venv.python}\nprint('ran')\n")
        paths[venv] = f"{folder}:{venv.on_path()['PATH']}"
    for first, second in ((worksite, other), (other, worksite)):
        for command in (["python", *RAN], ["torchrun", "x.py"], ["nice", "torchrun", "x.py"]):
            words = ["env", f"PATH={paths[second]}", *command]
            done = overlay_run(worksite, "--strict", *words, PATH=paths[first])
            assert (done.stdout == "ran\n") == (second is worksite), done.stderr
            if second is other:
                assert f"{other.folder}/bin/python is a different Python, without overlay" in done.stderr


def test_a_word_that_starts_nothing_is_not_asked(worksite: Venv, other: Venv) -> None:
    script = program(worksite.folder / "job.py", "print('ran')\n")
    words = [str(worksite.python), script, "--langs", "java", "python", "--no-p", "test"]
    done = overlay_run(worksite, "--strict", *words, **other.on_path())
    assert (done.stdout, done.stderr) == ("ran\n", "")


def test_an_empty_command_is_told_so(worksite: Venv) -> None:
    done = overlay_run(worksite, "", "python", *RAN)
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no COMMAND" in done.stderr


def test_the_python_that_the_environment_names_to_torchrun_is_asked(worksite: Venv, other: Venv) -> None:
    for words in (["python", *RAN], ["sh", "-c", "echo ran"], ["env", "PYTHON_EXEC={}", "python", *RAN]):
        for venv in (worksite, other):
            command = [word.replace("{}", str(venv.python)) for word in words]
            environ = {} if words[0] == "env" else {"PYTHON_EXEC": str(venv.python)}
            done = overlay_run(worksite, "--strict", *command, **environ)
            refusal = "PYTHON_EXEC names a Python that would run without patches: " in done.stderr
            assert (done.stdout, refusal) == (("ran\n", False) if venv is worksite else ("", True))


def test_a_python_that_prints_in_its_own_way_is_asked(tmp_path: Path, worksite: Venv, wheel: Path) -> None:
    venv = Venv(tmp_path / "ï")
    venv.unpack(wheel)
    venv.write({"sitecustomize.py": "import sys; sys.stdout = sys.stderr"})
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for odd in ({"PYTHONIOENCODING": "utf-16"}, plain):
        for words in (["python"], ["sh", "-c", 'python "$@"', "x"]):
            done = overlay_run(venv, "--strict", *words, "-c", "import os; os.write(1, b'ran')", **odd)
            assert done.stdout == "ran", done.stderr


def test_a_pin_brings_its_own_selection(worksite: Venv, tmp_path: Path) -> None:
    file = str(tmp_path / "overlay.lock")
    for chosen in ("acme/fakeup.scale,-megatron.agreement", "none", "all"):
        worksite.read("lock", "--update", "--file", file, "--patches", chosen, **PACK)
        expected = selected(overlay_run(worksite, "--patches", chosen, "python", "-c", SELECTED, **PACK))
        # Nor need anybody say which packs it takes.
        assert selected(overlay_run(worksite, "--pin", file, "python", "-c", SELECTED)) == expected, chosen
        by_variable = overlay_run(worksite, "python", "-c", SELECTED, OVERLAY_PIN=file)
        assert selected(by_variable) == expected, chosen


def test_a_pin_and_another_selection_are_refused_with_the_right_advice(
    worksite: Venv, tmp_path: Path
) -> None:
    file = str(tmp_path / "overlay.lock")
    worksite.read("lock", "--file", file, "--patches", "megatron.recompute")
    done = overlay_run(worksite, "--pin", file, "--patches", "all", "python", "-c", "print('ran')")
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert len(lines) <= 16
    assert lines[-2].endswith("more")
    assert "the selection differs: OVERLAY_PATCHES='megatron.recompute' is what was locked" in lines[-1]
    # The way out is one.
    assert selected(
        overlay_run(worksite, "--pin", file, "--patches", "megatron.recompute", "python", "-c", SELECTED)
    ) == sorted(["megatron.recompute", *COMPANIONS])


def test_a_pin_that_this_installation_violates_is_status_2(worksite: Venv, tmp_path: Path) -> None:
    file = tmp_path / "overlay.lock"
    worksite.read("lock", "--file", str(file), "--patches", "acme/*", **PACK)
    pack = worksite.site / "acme_overlay/patches/fakeup/scale.py"
    before = pack.read_text()
    marker = tmp_path / "ran"
    pack.write_text(f"open({str(marker)!r}, 'w')\n{before}")
    try:
        done = overlay_run(worksite, "--pin", str(file), "python", "-c", "print('ran')")
    finally:
        pack.write_text(before)
    assert (done.returncode, done.stdout) == (2, "")
    assert "pack acme: content: locked " in done.stderr
    assert not marker.exists()
    # Nor does the Python that is asked keep to itself what differs.
    said = overlay_run(worksite, "env", "OVERLAY_PATCHES=none", "python", *RAN, OVERLAY_PIN=str(file)).stderr
    assert f"differs from {file}:\n  locked and not selected here: acme/fakeup.scale, " in said


def test_it_is_started_by_nobody_else(worksite: Venv) -> None:
    # It becomes the command: signals and the terminal are the command's.
    code = "import os; print(os.getpid() == int(os.environ['SHELL_PID']))"
    shell = f'SHELL_PID=$$ exec "{worksite.python}" -m overlay run "{worksite.python}" -c "{code}"'
    done = worksite.run("-c", f"import os; os.execvp('sh', ['sh', '-c', {shell!r}])")
    assert done.stdout.strip() == "True", done.stderr
