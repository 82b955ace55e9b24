"""The start-up file: what arms a process before user code runs, and what says whether it does."""

from __future__ import annotations

import os
import pkgutil
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from worksite import ARMED, PATCHED, PLAIN, PROBE, Venv, build_wheel, clean_environment, copy_sources

PIN = {"OVERLAY_PIN": "/nowhere/overlay.lock"}


def test_the_start_file_names_a_function(worksite: Venv) -> None:
    # Python 3.15 and later read this file, resolve each line as `pkgutil` does, and call what is found.
    (line,) = (worksite.site / "overlay-startup.start").read_text().split()
    assert callable(pkgutil.resolve_name(line))
    done = worksite.run("-c", f"import pkgutil; pkgutil.resolve_name({line!r})(); {PROBE}", **ARMED)
    assert done.stdout.split()[-1] == PATCHED


@pytest.mark.parametrize("value", ["1", "true", "ON"])
def test_a_process_is_armed_before_user_code(worksite: Venv, value: str) -> None:
    done = worksite.run("-c", PROBE, **{**ARMED, "OVERLAY": value})
    assert done.stdout.split()[-1] == PATCHED, done.stderr
    configuration, has = done.stderr.splitlines()
    digest = configuration.rpartition("digest ")[2]
    assert has == f"overlay: this process: 1 applied, 0 refused, digest {digest}"


def test_a_job_of_a_launcher_that_is_patched_speaks_and_a_fork_does_not(worksite: Venv) -> None:
    job = f"import subprocess, sys; {PROBE}; subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)"
    done = worksite.run("-c", job, PROBE, **ARMED)
    assert done.stderr.count("overlay: configuration: ") == 2, done.stderr
    assert done.stderr.count("overlay: this process: 1 applied") == 2
    fork = f"import os; child = os.fork(); child and os.waitpid(child, 0); {PROBE}"
    done = worksite.run("-c", fork, **ARMED)
    assert done.stdout.split() == [PATCHED, PATCHED]
    assert done.stderr.count("overlay: configuration: ") == 1, done.stderr


IN_FRONT = """
import sys
from importlib.machinery import PathFinder
class InFront:
    find_spec = staticmethod(lambda name, path, target=None: PathFinder.find_spec(name, path))
sys.meta_path.insert(0, InFront)
"""


def test_an_upstream_that_was_imported_past_overlay_is_named_at_the_end(worksite: Venv) -> None:
    done = worksite.run("-c", f"{IN_FRONT}\n{PROBE}", **ARMED)
    assert done.stdout.split() == [PLAIN]
    assert "overlay: NOT patched: fakeup.core was imported past overlay" in done.stderr


@pytest.mark.parametrize("value", [None, "", "0", "off"])
def test_a_process_is_left_alone(worksite: Venv, value: str | None) -> None:
    environ = {key: text for key, text in ARMED.items() if key != "OVERLAY"}
    loaded = "import sys; print(any(name.startswith('overlay') for name in sys.modules))"
    done = worksite.run(
        "-c", f"{loaded}; {PROBE}", **environ, **({} if value is None else {"OVERLAY": value})
    )
    assert (done.stdout.split(), done.stderr) == ([str(value == "off"), PLAIN], "")


@pytest.mark.parametrize("options", [["-E"], ["-I"], ["-s"]])
def test_isolated_interpreters_are_armed_as_well(worksite: Venv, options: list[str]) -> None:
    # What `-E` ignores are the variables of Python itself.
    assert worksite.run(*options, "-c", PROBE, **ARMED).stdout.split()[-1] == PATCHED


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"OVERLAY": "perhaps"}, "OVERLAY='perhaps' is neither yes"),
        ({"OVERLAY_PATCHES": "verl.nothing"}, "'verl.nothing' names no patch"),
        ({"OVERLAY_PACKS": "acme2"}, "no pack 'acme2' is installed; there are: acme"),
        ({"OVERLAY_LOG": "loud"}, "OVERLAY_LOG='loud'"),
    ],
)
def test_a_setting_that_cannot_be_understood_is_one_line(
    worksite: Venv, environ: dict[str, str], words: str
) -> None:
    done = worksite.run("-c", PROBE, **{**ARMED, **environ})
    assert done.returncode == 0
    assert done.stdout.split()[-1] == PLAIN
    assert words in done.stderr
    assert done.stderr.startswith("overlay: NOT enabled: ")
    assert done.stderr.count("\n") == 1
    for binding in (PIN, {"OVERLAY_STRICT": "1"}):
        stopped = worksite.run("-c", PROBE, **{**ARMED, **environ, **binding})
        assert (stopped.returncode, stopped.stdout) == (1, "")
        assert stopped.stderr.startswith("overlay: this process is stopped: ")


def test_a_signal_that_a_job_waits_for_is_left_to_it(worksite: Venv, tmp_path: Path) -> None:
    """A thread of ours that has not blocked it would get it, and end the job."""
    code = (
        f"import os, signal as s; {PROBE}; s.pthread_sigmask(s.SIG_BLOCK, [s.SIGUSR1]); "
        "os.kill(os.getpid(), s.SIGUSR1); print(int(s.sigwait([s.SIGUSR1])))"
    )
    done = worksite.run("-c", code, **ARMED, OVERLAY_LEDGER_DIR=str(tmp_path))
    assert done.stdout.split() == [PATCHED, "10"], (done.returncode, done.stderr)


def test_where_no_thread_can_be_started_the_ledger_comes_at_the_end(worksite: Venv, tmp_path: Path) -> None:
    none = "import threading, unittest.mock as m; m.patch('threading.Thread.start', side_effect=RuntimeError)"
    code = f"{none}.start(); {PROBE}"
    done = worksite.run("-c", code, **ARMED, OVERLAY_LEDGER_DIR=str(tmp_path))
    assert (done.stdout.split(), len([*tmp_path.glob("*.json")])) == ([PATCHED], 2), done.stderr


def test_a_pack_that_a_later_start_up_file_leads_to_is_found(worksite: Venv, tmp_path: Path) -> None:
    """As those of editable installations do."""
    moved = (worksite.site / "acme_overlay").rename(tmp_path / "acme_overlay")
    later = worksite.site / "zz-acme.pth"
    later.write_text(f"{tmp_path}\n")
    try:
        done = worksite.run("-c", PROBE, **ARMED, OVERLAY_STRICT="1")
        assert done.stdout.split()[-1] == PATCHED, done.stderr
        early = worksite.site / "aa-early.pth"
        early.write_text(
            "import sys, types; sys.modules['sitecustomize'] = types.ModuleType('sitecustomize')\n"
        )
        done = worksite.run("-c", PROBE, **ARMED, OVERLAY_STRICT="1")
        early.unlink()
        assert (done.returncode, done.stdout) == (1, "")  # as it was too early for the pack
        later.unlink()
        done = worksite.run("-c", PROBE, **ARMED, OVERLAY_STRICT="1")
        assert (done.returncode, done.stdout) == (1, "")
    finally:
        moved.rename(worksite.site / "acme_overlay")


def test_what_a_pack_imports_may_come_later_too(worksite: Venv, tmp_path: Path) -> None:
    (tmp_path / "of_the_team.py").write_text("")
    patch = worksite.site / "acme_overlay/patches/fakeup/scale.py"
    later, before = worksite.site / "zz-acme.pth", patch.read_text()
    patch.write_text(f"import of_the_team\n{before}")
    later.write_text(f"{tmp_path}\n")
    try:
        done = worksite.run(
            "-c", "import sys; print('of_the_team' in sys.modules)", **ARMED, OVERLAY_STRICT="1"
        )
        assert done.stdout == "True\n", done.stderr
    finally:
        patch.write_text(before)
        later.unlink()


def test_doctor_asks_with_the_settings_that_hold(worksite: Venv, tmp_path: Path) -> None:
    """Only its own process finds the pack."""
    moved = (worksite.site / "acme_overlay").rename(tmp_path / "acme_overlay")
    code = f"import sys; sys.path.append({str(tmp_path)!r}); from overlay.cli import main; main(['doctor'])"
    try:
        done = worksite.run("-c", code, **ARMED, **worksite.on_path())
    finally:
        moved.rename(worksite.site / "acme_overlay")
    assert "NOT patched" in done.stdout, done.stderr
    assert "the pack acme (acme-overlay 4.5) cannot be loaded" in done.stdout


def test_a_start_up_file_that_a_program_reads_enables_packs_at_once(worksite: Venv) -> None:
    code = f"import site; site.addsitedir({str(worksite.site)!r}); {PROBE}"
    done = worksite.run("-S", "-c", code, **ARMED, OVERLAY_STRICT="1")
    assert done.stdout.split()[-1] == PATCHED, done.stderr


BROKEN: dict[str, dict[str, str]] = {
    "gone": {},
    "empty folder": {"overlay/__pycache__/x": ""},
    "init": {"overlay/__init__.py": "1/0\n"},
    "start": {"overlay/__init__.py": "", "overlay/launch/startup.py": "("},
}


@pytest.fixture(params=BROKEN)
def broken(request: pytest.FixtureRequest, tmp_path: Path, worksite: Venv) -> Venv:
    venv = Venv(tmp_path / "venv", linked=False)
    shutil.copy(worksite.site / "overlay-startup.pth", venv.site)
    venv.write(BROKEN[request.param])
    return venv


def test_a_broken_overlay_breaks_no_interpreter(broken: Venv) -> None:
    for strict in ({}, {"OVERLAY_STRICT": ""}, {"OVERLAY_STRICT": "0"}, {"OVERLAY_STRICT": "Off"}):
        done = broken.run("-c", "print('runs')", **ARMED, **strict)
        assert done.stdout == "runs\n"
        assert done.stderr.startswith("overlay: not started, its installation is broken: ")
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "binding", [PIN, {"OVERLAY_STRICT": "1"}, {"OVERLAY_STRICT": "YES"}, {"OVERLAY_STRICT": "perhaps"}]
)
def test_a_broken_overlay_ends_a_pinned_or_strict_process(broken: Venv, binding: dict[str, str]) -> None:
    for words in (["-c", "print('runs')"], ["-I", "-c", "print('runs')"], ["-m", "this"]):
        stopped = broken.run(*words, **ARMED, **binding)
        assert (stopped.returncode, stopped.stdout) == (1, "")
        assert stopped.stderr.startswith("overlay: this process is stopped, its installation is broken: ")
        assert stopped.stderr.endswith("install megatron-overlay again, or start with OVERLAY=0\n")
        assert stopped.stderr.count("\n") == 1
    # The way out that is named: with this, an installer runs.
    for off in ("0", "", "off", "No"):
        done = broken.run("-c", "print('runs')", **{**ARMED, **binding, "OVERLAY": off})
        assert (done.stdout, done.stderr) == ("runs\n", "")
    # A `-S` reads no start-up files, and a strict mode that nobody asked to be armed is none.
    assert broken.run("-S", "-c", "print('runs')", **ARMED, **binding).stdout == "runs\n"
    assert broken.run("-c", "print('runs')", **binding).stdout == "runs\n"


def test_nowhere_to_say_it_ends_the_process_as_well(broken: Venv) -> None:
    environ = clean_environment(**ARMED, OVERLAY_STRICT="1")
    for shell in ('"$0" -c "print(1)" 2>&-', '"$0" -c "print(1)" 2>/dev/full'):
        command = ["/bin/sh", "-c", shell, str(broken.python)]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout) == (1, ""), shell


def test_a_checkout_on_the_path_is_one_sentence_with_the_way_out(worksite: Venv, tmp_path: Path) -> None:
    """There, the patches lie beside the package, and not in it."""
    checkout = copy_sources(tmp_path / "checkout")
    said = f"overlay is imported from the checkout {checkout}, which has no overlay.patches: `pip install"
    for words in ([], ["doctor"], ["run", "python", "-c", "1"], ["list"], ["suite", "list"]):
        done = worksite.run("-m", "overlay", *words, PYTHONPATH=str(checkout))
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"overlay: {said}"), words
        assert done.stderr.count("\n") == 1
    done = worksite.run("-c", "import overlay; overlay.enable()", PYTHONPATH=str(checkout))
    assert done.stderr.splitlines()[-1].startswith(f"overlay.errors.OverlayError: {said}")
    done = worksite.run("-c", PROBE, PYTHONPATH=str(checkout), **ARMED)
    assert done.stdout.split() == [PLAIN]
    assert done.stderr.startswith(f"overlay: NOT enabled: {said}")
    assert done.stderr.count("\n") == 1


def test_a_job_hears_again_at_its_end_that_it_was_not_patched(worksite: Venv, tmp_path: Path) -> None:
    (tmp_path / "verl").mkdir()
    (tmp_path / "verl/__init__.py").write_text("")
    environ = {"OVERLAY": "1", "OVERLAY_PATCHES": "verl.nothing", "PYTHONPATH": str(tmp_path)}
    for code, more, times in (
        ("import verl", {}, 2),
        ("import verl", {"RANK": "0"}, 2),
        ("import verl", {"RANK": "1"}, 1),
        ("import json", {}, 1),
    ):
        done = worksite.run("-c", code, **environ, **more)
        assert done.returncode == 0
        assert done.stderr.count("overlay: NOT enabled: OVERLAY_PATCHES: 'verl.nothing'") == times


@pytest.mark.parametrize("missing", ["model/settings.py", "runtime/engine.py", "errors.py"])
def test_an_overlay_with_parts_missing_is_a_broken_one(tmp_path: Path, wheel: Path, missing: str) -> None:
    # Asked as Python 3.15 asks, which swallows whatever is raised, and as the versions before do.
    venv = Venv(tmp_path / "venv")
    venv.unpack(wheel)
    (venv.site / "overlay" / missing).unlink()
    as_3_15 = "import pkgutil; pkgutil.resolve_name('overlay.launch.startup:start')()"
    for words in (
        ["-c", "print(1)"],
        ["-S", "-c", f"import sys; sys.path[:0] = {[str(venv.site)]}; {as_3_15}"],
    ):
        done = venv.run(*words, OVERLAY="1", OVERLAY_STRICT="1")
        assert (done.returncode, done.stdout) == (1, "")


def test_patches_that_are_missing_are_an_error(tmp_path: Path, worksite: Venv, wheel: Path) -> None:
    """As after an interrupted installation, or in an image that left a folder out."""
    venv = Venv(tmp_path / "venv")
    venv.unpack(wheel)
    shutil.rmtree(venv.site / "overlay/patches/verl")
    done = venv.run("-c", "print(1)", OVERLAY="1")
    assert done.stdout == "1\n"
    assert done.stderr.startswith("overlay: NOT enabled: ")
    assert "patches that come with overlay are missing (verl)" in done.stderr
    stopped = venv.run("-c", "print(1)", OVERLAY="1", OVERLAY_STRICT="1")
    assert (stopped.returncode, stopped.stdout) == (1, "")


def test_one_patch_that_is_missing_is_told_as_soon_as_patches_are_loaded(tmp_path: Path, wheel: Path) -> None:
    venv = Venv(tmp_path / "venv")
    venv.unpack(wheel)
    venv.write({"verl/__init__.py": "print(1)"})
    (venv.site / "overlay/patches/megatron/grad_norm/__init__.py").unlink()
    said = "patches that come with overlay are missing (megatron.grad-norm): install overlay again"
    done = venv.run("-c", "import verl", OVERLAY="1")
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert f"overlay: NOT enabled: {said}" in done.stderr
    stopped = venv.run("-c", "import verl", OVERLAY="1", OVERLAY_STRICT="1")
    assert (stopped.returncode, stopped.stdout) == (1, "")
    assert said in stopped.stderr
    refused = venv.run("-m", "overlay", "run", "--strict", "sh", "-c", "echo 1", **venv.on_path())
    assert (refused.returncode, refused.stdout) == (2, "")
    assert said in refused.stderr


def test_the_name_of_a_folder_does_not_make_a_selection_vain(worksite: Venv, tmp_path: Path) -> None:
    """What is installed counts once the path is whole, with the first import of an upstream."""
    script = tmp_path / "miles/train.py"
    script.parent.mkdir()
    script.write_text("import colorsys")
    armed = {"OVERLAY": "1", "OVERLAY_PATCHES": "slime.loss-memory"}
    assert worksite.run(str(script), **armed).stderr == ""
    script.write_text("import verl")
    said = "the selection slime.loss-memory has no patch for what is found here so far"
    assert said in worksite.run(str(script), **armed).stderr


def test_known_defects_that_are_missing_are_an_error(tmp_path: Path, wheel: Path) -> None:
    venv = Venv(tmp_path / "venv")
    venv.unpack(wheel)
    (venv.site / "overlay/patches/_defects/verl.py").unlink()
    done = venv.run("-m", "overlay", "audit")
    said = (
        "overlay: known defects are missing (No module named 'overlay.patches._defects.verl'): install over"
    )
    assert (done.returncode, done.stderr[: len(said)]) == (1, said)


#: What other ranks hear of overlay's code, before a file of it changes and after.
CHANGED = """
import os, overlay, overlay.errors, verl
from overlay.runtime.process import here
for _ in range(2):
    print(here().statement().facts["overlay"], here().configuration())
    with open(os.path.join(os.path.dirname(overlay.__file__), "patches/verl/grad_norm.py"), "w") as file:
        file.write("# changed")
"""


def test_an_upgrade_does_not_change_what_a_job_says_that_it_runs(tmp_path: Path, wheel: Path) -> None:
    venv = Venv(tmp_path / "venv")
    venv.unpack(wheel)
    venv.write({"verl/__init__.py": ""})
    before, after = venv.run("-c", CHANGED, OVERLAY="1").stdout.splitlines()
    assert re.match(r"\S+, code [0-9a-f]{12} configuration: .*digest [0-9a-f]{12}$", before)
    assert after == before


# -- overlay run -----------------------------------------------------------------------------------


def test_run_hands_on_a_relative_pin_as_an_absolute_one(worksite: Venv) -> None:
    worksite.run("-m", "overlay", "lock", "--file", "a.lock", "--patches", "megatron.recompute")
    code = "import os; print(os.environ['OVERLAY_PIN'], os.environ.get('OVERLAY_STRICT'))"
    options = ["--pin", "a.lock", "--strict"]
    done = worksite.run("-m", "overlay", "run", *options, "--", str(worksite.python), "-c", code)
    assert done.stdout.split() == [str(worksite.folder / "a.lock"), "1"]


def test_run_hands_on_a_relative_folder_of_ledgers_as_an_absolute_one(worksite: Venv) -> None:
    words = ["sh", "-c", "cd /; echo $OVERLAY_LEDGER_DIR"]
    done = worksite.run("-m", "overlay", "run", *words, OVERLAY_LEDGER_DIR="ledgers")
    assert done.stdout.split() == [str(worksite.folder / "ledgers")], done.stderr


def test_run_says_what_it_cannot_start(worksite: Venv) -> None:
    done = worksite.run("-m", "overlay", "run", "--", "/nowhere/python")
    assert done.returncode == 127
    assert "command not found" in done.stderr
    done = worksite.run("-m", "overlay", "run", "--", str(worksite.site))
    assert done.returncode == 126


# -- overlay doctor --------------------------------------------------------------------------------


def test_doctor_with_start_up_files_switched_off(worksite: Venv) -> None:
    path = os.pathsep.join([str(worksite.site), *(worksite.site / "zz-linked.pth").read_text().split()])
    done = worksite.run("-S", "-m", "overlay", "doctor", PYTHONPATH=path)
    assert done.returncode == 1
    assert "runs with -S" in done.stdout


def test_doctor_of_a_target_folder(tmp_path: Path, wheel: Path) -> None:
    venv = Venv(tmp_path / "venv")
    venv.unpack(wheel, tmp_path / "target")
    found = venv.read_failing("doctor", PYTHONPATH=str(tmp_path / "target"))
    assert "pip install --target" in " ".join(found["todo"])
    # It runs nothing instead of running it unpatched, and the advice helps.
    words = ["-m", "overlay", "run", "--", str(venv.python), "-c", "print('ran')"]
    done = venv.run(*words, PYTHONPATH=str(tmp_path / "target"))
    assert (done.returncode, done.stdout) == (1, "")
    for name in ("overlay-startup.pth", "overlay-startup.start"):
        shutil.copy(tmp_path / "target" / name, venv.site)
    armed = {"OVERLAY": "1", "PYTHONPATH": str(tmp_path / "target")}
    assert venv.read("doctor", **armed, **venv.on_path())["armed"]


def test_a_python_that_hides_the_user_site_is_refused_and_told_why(tmp_path: Path, wheel: Path) -> None:
    venv, user = Venv(tmp_path / "venv"), tmp_path / "user"
    settings = venv.folder / "pyvenv.cfg"
    settings.write_text(settings.read_text().replace("packages = false", "packages = true"))
    venv.unpack(wheel, user / venv.site.relative_to(venv.folder))
    for options, status in ((["-u"], 0), (["-s"], 1), (["-I"], 1)):
        command = [str(venv.python), *options, "-c", "print('ran')"]
        done = venv.run("-m", "overlay", "run", "--patches", "none", *command, PYTHONUSERBASE=str(user))
        assert done.returncode == status, done.stderr
        assert ("install overlay elsewhere, or leave out -s, -I and" in done.stderr) == bool(status)


def test_doctor_of_an_editable_installation(tmp_path: Path) -> None:
    venv = Venv(tmp_path / "venv", linked=False)
    venv.unpack(build_wheel(tmp_path / "checkout", "editable"))
    found = venv.read_failing("doctor")
    assert "editable installs carry no start-up file" in " ".join(found["todo"])
    startup = tmp_path / "checkout" / "sources" / "startup"
    assert str(startup) in " ".join(found["todo"])
    for name in ("overlay-startup.pth", "overlay-startup.start"):
        shutil.copy(startup / name, venv.site)
    assert venv.read("doctor", OVERLAY="1", **venv.on_path())["armed"]


def test_doctor_of_a_file_that_starts_another_copy(tmp_path: Path, worksite: Venv, wheel: Path) -> None:
    venv = Venv(tmp_path / "venv")
    venv.unpack(wheel, tmp_path / "target")
    venv.unpack(wheel)
    code = "import sys; sys.path.insert(0, sys.argv.pop()); from overlay.cli import main; main(['doctor'])"
    done = venv.run("-c", code, str(tmp_path / "target"))
    assert "it starts another copy of overlay" in done.stdout


def test_every_kind_of_installation_has_the_same_content(tmp_path: Path, worksite: Venv) -> None:
    code = "from overlay.source.registry import of_overlay; print(of_overlay())"
    editable = Venv(tmp_path / "venv", linked=False)
    editable.unpack(build_wheel(tmp_path / "checkout", "editable"))
    digest = worksite.run("-c", code).stdout
    assert len(digest.strip()) == 64
    assert editable.run("-c", code).stdout == digest
    # Whatever changes is in it: the code of patches, and what they share.
    sources = tmp_path / "checkout" / "sources"
    digests = {digest}
    for changed in ("patches/megatron/recompute/__init__.py", "compat/projects.py"):
        with (sources / changed).open("a") as file:
            file.write("\n# changed\n")
        digests.add(editable.run("-c", code).stdout)
    assert len(digests) == 3
