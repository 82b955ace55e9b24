"""The set-up scripts: what makes an environment current, who may install, and what the pins promise."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from benches import _audit, _call, _timing, costs
from environment import setup as environment
from environment import setup_pip
from testing import suite

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = ROOT / "scripts"
STARTERS = ("demo", "test", "bench", "torture")
#: What runs before the environment exists.
BEFORE = (*STARTERS, "environment.py", "setup_base.py", "setup_pip.py", "setup_python.py")


@pytest.fixture
def layout(tmp_path: Path) -> Any:
    """A checkout with nothing but what the set-up reads."""
    requirements = tmp_path / "scripts" / "environment" / "requirements"
    requirements.mkdir(parents=True)
    (requirements / "constraints.txt").write_text("torch==1.0\n")
    (requirements / "demo.in").write_text("torch==1.0\nverl==1.0\n")
    (requirements / "test.in").write_text("pytest\n")
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n\n[tool.ruff]\nline-length = 110\n")
    (tmp_path / "overlay").mkdir()
    (tmp_path / "overlay" / "_version.py").write_text("__version__ = '0'\n")
    return environment.Layout(tmp_path)


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace the making of the venv and the calls of pip by a list of what was asked for."""
    asked: list[str] = []

    def make(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        folder = Path(command[-1])
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "python").symlink_to(sys.executable)
        return subprocess.CompletedProcess(command, 0, b"")

    def install(name: str, arguments: list[str], layout: Any, progress: Any, lock: int) -> None:
        assert lock > 2
        asked.append(name)

    monkeypatch.setattr(environment, "find_python", lambda: sys.executable)
    monkeypatch.setattr(environment, "output", lambda command: "")
    monkeypatch.setattr(environment.subprocess, "run", make)
    monkeypatch.setattr(environment, "pip_install", install)
    return asked


# The stamp --------------------------------------------------------------------------------------------------


def test_second_call_installs_nothing(layout: Any, pip: list[str]) -> None:
    assert environment.ensure("demo", layout) == layout.python
    assert pip[0] == "torch==1.0"
    assert len(pip) == 3
    environment.ensure("demo", layout)
    assert len(pip) == 3


def test_test_tools_are_added_to_the_environment_of_the_demo(layout: Any, pip: list[str]) -> None:
    environment.ensure("demo", layout)
    environment.ensure("test", layout)
    assert pip[3:] == ["the test tools"]
    assert environment.is_current("demo", layout)


def test_environment_of_the_tests_serves_the_demo(layout: Any, pip: list[str]) -> None:
    environment.ensure("test", layout)
    assert len(pip) == 4
    environment.ensure("demo", layout)
    assert len(pip) == 4


@pytest.mark.parametrize(
    "changed",
    [
        "scripts/environment/requirements/constraints.txt",
        "scripts/environment/requirements/demo.in",
        "pyproject.toml",
        "overlay/_version.py",
    ],
)
def test_changed_file_installs_again(layout: Any, pip: list[str], changed: str) -> None:
    environment.ensure("test", layout)
    path = layout.root / changed
    path.write_text("# new\n" + path.read_text().replace("[project]", "[project]\ndependencies = ['wrapt']"))
    assert not environment.is_current("demo", layout)
    assert not environment.is_current("test", layout)
    environment.ensure("demo", layout)
    assert len(pip) == 4 + 3
    assert not environment.is_current("test", layout)


def test_changed_test_tools_leave_the_demo_alone(layout: Any, pip: list[str]) -> None:
    environment.ensure("test", layout)
    (layout.requirements / "test.in").write_text("pytest\nmypy\n")
    assert environment.is_current("demo", layout)
    environment.ensure("test", layout)
    assert pip[4:] == ["the test tools"]


def test_changed_linter_setting_costs_no_installation(layout: Any, pip: list[str]) -> None:
    environment.ensure("demo", layout)
    path = layout.root / "pyproject.toml"
    path.write_text(path.read_text().replace("110", "79"))
    assert environment.is_current("demo", layout)


@pytest.mark.parametrize("state", ["", "{", "[]", '{"stamps": 1}', "null"])
def test_unreadable_record_is_no_record(layout: Any, state: str) -> None:
    layout.venv.mkdir()
    layout.state.write_text(state)
    assert environment.read_state(layout) is None
    assert not environment.is_current("demo", layout)


def test_foreign_environment_is_left_alone(layout: Any, pip: list[str]) -> None:
    layout.venv.mkdir()
    (layout.venv / "mine").write_text("")
    with pytest.raises(environment.SetupError, match="was not made by this script"):
        environment.ensure("demo", layout)
    assert (layout.venv / "mine").exists()
    assert pip == []


def test_moved_checkout_gets_a_new_environment(
    layout: Any, pip: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    environment.ensure("demo", layout)
    (layout.venv / "old").write_text("")
    state = environment.read_state(layout)
    environment.write_state(layout, {**state, "root": "/elsewhere", "stamps": {}})
    environment.ensure("demo", layout)
    assert not (layout.venv / "old").exists()
    assert "moved or copied" in capsys.readouterr().err
    assert not list(layout.root.glob(".venv-discarded-*"))


def interrupted(
    layout: Any, monkeypatch: pytest.MonkeyPatch, output: str, error: type[BaseException]
) -> None:
    """Let the second call of pip end with `error` after it has printed `output`."""
    calls = []

    def install(name: str, *_: Any) -> None:
        calls.append(name)
        if len(calls) == 2:
            layout.log.write_text(
                f"$ pip install torch\nInstalling collected packages: torch\n$ pip\n{output}\n"
            )
            raise error

    monkeypatch.setattr(environment, "pip_install", install)
    with pytest.raises(error):
        environment.ensure("demo", layout)
    assert not environment.is_current("demo", layout)


@pytest.mark.parametrize("error", [environment.SetupError, KeyboardInterrupt, SystemExit])
def test_installation_interrupted_in_the_middle_starts_over(
    layout: Any, pip: list[str], monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    with monkeypatch.context() as patched:
        interrupted(layout, patched, "Installing collected packages: a, b", error)
    (layout.venv / "old").write_text("")
    environment.ensure("demo", layout)
    assert not (layout.venv / "old").exists()
    assert environment.is_current("demo", layout)


@pytest.mark.parametrize("error", [environment.SetupError, KeyboardInterrupt, SystemExit])
def test_download_that_fails_keeps_what_is_installed(
    layout: Any, pip: list[str], monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    with monkeypatch.context() as patched:
        interrupted(layout, patched, "Downloading verl", error)
    (layout.venv / "old").write_text("")
    environment.ensure("demo", layout)
    assert (layout.venv / "old").exists()


def test_killed_process_leaves_no_stamp(layout: Any, pip: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing runs after a SIGKILL, so what is on disk while pip runs is what is left."""

    def install(name: str, *_: Any) -> None:
        assert not environment.is_current("demo", layout)
        seen.append(json.loads(layout.state.read_text())["installing"])

    seen: list[str] = []
    monkeypatch.setattr(environment, "pip_install", install)
    environment.ensure("demo", layout)
    assert seen == ["demo"] * 3


# The lock ---------------------------------------------------------------------------------------------------


def test_parallel_calls_install_once(layout: Any, pip: list[str]) -> None:
    threads = [threading.Thread(target=environment.ensure, args=("demo", layout)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(pip) == 3
    assert environment.is_current("demo", layout)


def test_lock_waits_for_another_process_and_survives_its_death(layout: Any) -> None:
    code = (
        "import fcntl, os, sys, time\n"
        "fcntl.flock(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)\n"
        "print('held', flush=True)\n"
        "time.sleep(60)\n"
    )
    layout.cache.mkdir()
    stream = io.StringIO()
    with subprocess.Popen([sys.executable, "-c", code, str(layout.lock)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        timer = threading.Timer(0.5, holder.kill)
        timer.start()
        with environment.locked(layout, environment.Progress(stream)):
            assert holder.wait(10) == -signal.SIGKILL
        timer.join()
    assert "waiting for it" in stream.getvalue()


# pip -----------------------------------------------------------------------------------------------------


@pytest.fixture
def fake_pip(layout: Any) -> Any:
    """An environment whose Python answers `-m pip install` with a script of the test's choosing."""
    layout.python.parent.mkdir(parents=True)
    layout.cache.mkdir()

    def write(body: str) -> Any:
        layout.python.write_text(f"#!/bin/sh\n{body}\n")
        layout.python.chmod(0o755)
        return layout

    return write


def test_failure_shows_the_end_of_the_log_and_where_it_is(fake_pip: Any) -> None:
    layout = fake_pip(
        "i=0; while [ $i -lt 40 ]; do i=$((i+1)); echo line $i; done; echo No space left on device; exit 3"
    )
    with pytest.raises(environment.SetupError) as caught:
        environment.pip_install("verl", ["verl"], layout, environment.Progress(io.StringIO()), 2)
    message = str(caught.value)
    assert "could not install verl (exit code 3)" in message
    assert "line 40" in message
    assert "line 20" not in message
    assert str(layout.log) in message
    assert "takes 2 GB" in message
    assert "line 1\n" in layout.log.read_text()


def test_settings_for_other_environments_are_out_of_the_way(
    fake_pip: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_CONSTRAINT", "/etc/other.txt")
    monkeypatch.setenv("PYTHONPATH", "/opt/Megatron-LM")
    monkeypatch.setenv("PIP_USER", "1")
    monkeypatch.setenv("PIP_PROXY", "kept")
    layout = fake_pip("env")
    environment.pip_install("verl", ["verl"], layout, environment.Progress(io.StringIO()), 2)
    log = layout.log.read_text()
    assert f"\nPIP_CONSTRAINT={layout.constraints.as_uri()}\n" in log
    assert "PYTHONPATH" not in log
    assert "PIP_USER" not in log
    assert "\nPIP_PROXY=kept\n" in log


@pytest.mark.parametrize(
    ("tail", "doing"),
    [
        ("", "starting pip"),
        (
            "Collecting verl==0.8.0 (from -r demo.in (line 2))\n  Using cached x.whl (1 kB)\n",
            "Using cached x.whl (1 kB)",
        ),
        ("Collecting a (from b)\n  noise\n", "Collecting a"),
        ("Downloading x\nInstalling collected packages: a, b, c\n", "installing 3 packages"),
        ("Installing collected packages: a\n", "installing 1 package"),
        ("Installing collected packages: a\n$ python -m pip\n", "starting pip"),
    ],
)
def test_progress_says_what_pip_does(tail: str, doing: str) -> None:
    assert setup_pip.doing(tail) == doing


def test_progress_off_a_terminal_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(environment.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    progress = environment.Progress(stream)
    for _ in range(61):
        progress.tick("torch: installing 10 packages")
        now[0] += 1
    lines = stream.getvalue().splitlines()
    assert lines == [f"[{second:4} s] torch: installing 10 packages" for second in (15, 30, 45, 60)]
    assert "\r" not in stream.getvalue()


# Finding Python ---------------------------------------------------------------------------------------------


def fake_python(path: Path, answer: str) -> str:
    path.write_text(f"#!/bin/sh\n{answer}\n")
    path.chmod(0o755)
    return str(path)


def test_finds_the_first_python_of_the_right_version(tmp_path: Path) -> None:
    paths = [
        str(tmp_path / "missing"),
        str(tmp_path),
        fake_python(tmp_path / "broken", "exit 127"),
        fake_python(tmp_path / "newer", "printf '3\\n12\\nCPython\\n/usr/bin/python3.12\\n'"),
        fake_python(tmp_path / "other", "printf '3\\n11\\nPyPy\\n/usr/bin/pypy\\n'"),
        fake_python(tmp_path / "shim", "printf '3\\n11\\nCPython\\n/real/python3.11\\n'"),
    ]
    assert environment.find_python(paths) == "/real/python3.11"


def test_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(environment.SetupError, match=r"Python 3\.11 is needed and was not found") as caught:
        environment.find_python([fake_python(tmp_path / "python3", "exit 1")])
    assert "python3.11-venv" in str(caught.value)


def test_names_a_python_that_cannot_make_environments(tmp_path: Path) -> None:
    answer = 'case "$3" in *ensurepip*) exit 1;; *) echo 3 11;; esac'
    path = fake_python(tmp_path / "python3.11", answer)
    with pytest.raises(environment.SetupError, match="cannot make virtual environments") as caught:
        environment.find_python([path])
    assert path in str(caught.value)


# The scripts themselves -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BEFORE)
def test_starts_with_an_old_python(name: str) -> None:
    ast.parse((SCRIPTS / name).read_text(), feature_version=(3, 8))


@pytest.mark.parametrize("name", [*(f"scripts/{name}" for name in STARTERS), ".ci/run"])
def test_is_executable(name: str) -> None:
    assert os.access(ROOT / name, os.X_OK)


def test_continuous_integration_takes_the_bundles_beside_the_project(tmp_path: Path) -> None:
    """Those that nobody named otherwise, and only those that are there."""
    project, bundles = tmp_path / "a project", tmp_path / "shared/upstreams"
    for folder in (project / ".ci", project / "scripts", bundles):
        folder.mkdir(parents=True)
    shutil.copy(ROOT / ".ci/run", project / ".ci/run")
    told = '#!/bin/sh\necho "$SLIME_REPO|$MEGATRON_REPO|$VERL_REPO|$MILES_REPO|$CI|$*"\n'
    (project / "scripts/test").write_text(told)
    (project / "scripts/test").chmod(0o755)
    for name in ("slime", "megatron"):
        (bundles / f"{name}.bundle").touch()
    clean = {name: text for name, text in os.environ.items() if not name.endswith("_REPO")}
    command = [str(project / ".ci/run"), "-k", "it"]
    done = subprocess.run(
        command, env={**clean, "SLIME_REPO": "/mine"}, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    slime, megatron, *rest = done.stdout.strip().split("|")
    assert slime == "/mine"
    assert Path(megatron).samefile(bundles / "megatron.bundle")
    assert rest == ["", "", "true", "-k it"]


def test_set_up_needs_the_standard_library_only() -> None:
    names: set[str] = set()
    for file in BEFORE:
        for node in ast.walk(ast.parse((SCRIPTS / file).read_text())):
            if isinstance(node, ast.Import):
                names.update(alias.name.split(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                names.add(str(node.module).split(".")[0])
    own = {file.partition(".")[0] for file in BEFORE}
    assert names <= sys.stdlib_module_names | own


def test_arguments_reach_the_script(layout: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def ensure(profile: str, where: Any) -> Any:
        seen.append(profile)
        return where.python

    (layout.root / "scripts" / "demo_cases.py").write_text("")
    monkeypatch.setattr(environment, "Layout", lambda: layout)
    monkeypatch.setattr(environment, "ensure", ensure)
    monkeypatch.setattr(environment.signal, "signal", lambda *_: None)
    monkeypatch.setattr(environment.os, "execve", lambda *call: seen.append(call))
    monkeypatch.setenv("PYTHONPATH", "/opt/Megatron-LM")
    environment.run_in("demo", "demo_cases.py", ["--case", "a b"])
    profile, (path, command, env) = seen
    assert profile == "demo"
    assert path == str(layout.python)
    assert command == [path, str(layout.root / "scripts" / "demo_cases.py"), "--case", "a b"]
    assert env["PATH"].startswith(str(layout.venv / "bin"))
    assert "PYTHONPATH" not in env


def test_missing_script_is_a_message(layout: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "Layout", lambda: layout)
    monkeypatch.setattr(environment.signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit, match=r"demo_cases\.py is missing from this checkout"):
        environment.run_in("demo", "demo_cases.py", [])


def test_unknown_profile_is_an_error(layout: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(environment.SetupError, match="unknown profile 'dem'"):
        environment.ensure("dem", layout)
    with pytest.raises(SystemExit):
        environment.main(["dem"])
    assert "invalid choice" in capsys.readouterr().err


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Any:
    """scripts/testing/suite.py, whose checks and pytest are a list of calls."""
    module = suite
    module.calls = []
    monkeypatch.setattr(module, "ruff", lambda root, *arguments: module.calls.append(arguments[0]) or 0)
    monkeypatch.setattr(module, "mypy", lambda root: module.calls.append("mypy") or 1)
    monkeypatch.setattr(module, "suites", lambda root: module.calls.append("suites") or 1)
    monkeypatch.setattr(module.os, "chdir", lambda path: None)

    def main(arguments: list[str], plugins: list[Any]) -> int:
        module.calls.append(("pytest", arguments, plugins[0].failed))
        return 0

    monkeypatch.setattr(pytest, "main", main)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return module


def test_without_arguments_everything_runs_and_a_failure_counts(checks: Any) -> None:
    assert checks.main([]) == 1
    assert checks.calls == ["check", "format", "mypy", ("pytest", checks.WORKERS, ["mypy"])]


def test_the_nightly_variant_runs_the_suites_of_upstreams_too(checks: Any) -> None:
    assert checks.main(["--nightly"]) == 1
    failed = ["mypy", "upstream's suites"]
    assert checks.calls == ["check", "format", "mypy", "suites", ("pytest", checks.WORKERS, failed)]


def test_linters_and_types_run_alone(checks: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert checks.main(["--lint"]) == 1
    assert checks.calls == ["check", "format", "mypy"]
    assert capsys.readouterr().out.endswith("failed: mypy\n")


def test_with_arguments_pytest_runs_alone(checks: Any) -> None:
    assert checks.main(["-k", "shape"]) == 0
    assert checks.calls == [("pytest", ["-k", "shape"], [])]


def test_types_are_checked_in_the_layout_of_the_imports(tmp_path: Path) -> None:
    for name in ("overlay", "patches", "compat"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    module = suite
    for _ in range(2):
        tree = module.typed_tree(tmp_path)
        found = sorted(str(path.relative_to(tree)) for path in tree.glob("overlay/**/*.py"))
        assert "overlay/__init__.py" in found
        assert (tree / "overlay" / "patches" / "__init__.py").is_file()
        assert (tree / "overlay" / "compat" / "__init__.py").is_file()
    (tmp_path / "overlay" / "old.py").write_text("")
    module.typed_tree(tmp_path)
    (tmp_path / "overlay" / "old.py").unlink()
    assert not (module.typed_tree(tmp_path) / "overlay" / "old.py").is_symlink()


# The benchmarks ---------------------------------------------------------------------------------------------


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """scripts/bench_all.py with one benchmark, whose target is met, and one whose target is not."""
    module = costs
    row = _timing.Row("good", "ms", 10.0, 12.0, 2.0, 1.5, 15.0)
    monkeypatch.setattr(
        module,
        "BENCHMARKS",
        {"good": (lambda turns: [row], 3), "bad": (lambda turns: [row._replace(name="bad", target=1.0)], 3)},
    )
    return module


def test_bench_fails_on_a_missed_target_if_asked_to(bench: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main([]) == 0
    assert "MISSED" in capsys.readouterr().out
    assert bench.main(["--check"]) == 1
    assert bench.main(["--check", "good"]) == 0
    capsys.readouterr()
    assert bench.main(["--json", "good"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["ratio"], row["met"]) == (1.2, True)


@pytest.mark.parametrize("arguments", [["fast"], ["--turns", "0"]])
def test_bench_refuses_what_it_does_not_know(
    bench: Any, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        bench.main(arguments)
    assert "error:" in capsys.readouterr().err


def test_bench_measures_patches_that_are_applied() -> None:
    names = [row.name for row in _call.measure(1)]
    assert len(names) == 3
    assert all("plain call" in name for name in names)


def test_run_time_can_be_told_to_use_the_wall_clock() -> None:
    timing = _timing
    sleep = timing.interpreter("-c", "import time; time.sleep(0.5)")
    assert timing.run_time(sleep) < 0.5 <= timing.run_time(sleep, wall=True)


@pytest.fixture
def audit(monkeypatch: pytest.MonkeyPatch) -> Any:
    """scripts/bench_audit.py, with a list of what it does in place of its measurements."""
    module = _audit
    module.calls = []

    def run_time(command: list[str], *, wall: bool = False) -> float:
        module.calls.append(("audit" if command == module.AUDIT else "empty", wall))
        return 0.25

    monkeypatch.setattr(module, "run_time", run_time)
    monkeypatch.setattr(module, "evict", lambda paths: module.calls.append(len(paths)))
    return module


def test_bench_evicts_before_every_audit_and_looks_at_the_wall(audit: Any) -> None:
    if not audit.can_evict():
        pytest.skip("there is no posix_fadvise")
    (row,) = audit.measure(2)
    assert row.name == "overlay audit, cold, wall clock / empty interpreter"
    assert (row.measured, row.held, row.target) == (250, "measured", 1000)
    count = len(audit.files())
    assert audit.calls == [("empty", True), count, ("audit", True), count, ("audit", True), ("empty", True)]
    names = {path.name for path in audit.files()}
    assert names >= {"_engine.py", "cpu_engine.py", "dynamic_cp_loss.py", "wrappers.py", "specifiers.py"}
    assert {path.suffix for path in audit.files()} == {".py", ".pyc"}


def test_bench_of_an_audit_that_cannot_be_cold_does_not_say_that_it_is(
    audit: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    (row,) = audit.measure(1)
    assert row.name.startswith("overlay audit, warm, wall clock / ")
    assert "warm" in capsys.readouterr().err
    assert audit.calls == [("empty", True), 0, ("audit", True)]


def test_evicted_files_are_still_there(tmp_path: Path) -> None:
    module = _audit
    if not module.can_evict():
        pytest.skip("there is no posix_fadvise")
    path = tmp_path / "module.py"
    path.write_text("x = 1\n")
    module.evict([path])
    assert path.read_text() == "x = 1\n"


# The pins ---------------------------------------------------------------------------------------------------


def requirements(name: str) -> list[Requirement]:
    lines = (SCRIPTS / "environment" / "requirements" / name).read_text().splitlines()
    return [Requirement(line) for line in lines if line.strip() and not line.startswith("#")]


PINS = {canonicalize_name(pin.name): pin for pin in requirements("constraints.txt")}


def test_every_constraint_is_one_exact_version() -> None:
    assert len(PINS) == len(requirements("constraints.txt"))
    for pin in PINS.values():
        (specifier,) = pin.specifier
        assert specifier.operator == "=="
        assert Version(specifier.version).local is None, f"{pin} is one build of many"
        assert pin.marker is None
        assert pin.url is None


@pytest.mark.parametrize("name", ["demo.in", "test.in"])
def test_every_requirement_is_pinned(name: str) -> None:
    for wanted in requirements(name):
        (pin,) = PINS[canonicalize_name(wanted.name)].specifier
        assert wanted.specifier.contains(pin.version, prereleases=True), wanted


def test_what_the_project_depends_on_is_pinned() -> None:
    for text in metadata.requires("megatron-overlay") or []:
        wanted = Requirement(text)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": "rich"}):
            continue  # for another Python than the one that is pinned for
        (pin,) = PINS[canonicalize_name(wanted.name)].specifier
        assert wanted.specifier.contains(pin.version), wanted


def test_pins_are_what_is_installed() -> None:
    """What the tests run with is what is shipped, also where the environment was made by hand."""
    wrong = {}
    for name in ("torch", "verl", "megatron-core", "numpy", "pyarrow", "tensordict", "transformers", "wrapt"):
        try:
            installed = Version(metadata.version(name)).public
        except metadata.PackageNotFoundError:
            pytest.skip(f"{name} is not installed")
        if installed not in PINS[canonicalize_name(name)].specifier:
            wrong[name] = installed
    assert wrong == {}


def test_pins_are_complete() -> None:
    """Nothing that the pinned packages pull in here is left to the day's index."""
    missing = set()
    for distribution in metadata.distributions():
        if canonicalize_name(distribution.name) not in PINS:
            continue
        for text in distribution.requires or []:
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                missing.add(canonicalize_name(needed.name))
    # A CUDA build of torch pins these itself.
    cuda = re.compile(r"nvidia-|cuda-|triton")
    assert {name for name in missing - PINS.keys() if not cuda.match(name)} == set()


SHIPPED = sorted(
    path for path in SCRIPTS.rglob("*") if path.is_file() and path.parent.name in {"scripts", "requirements"}
)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_no_index_is_chosen_for_the_user(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"(--|PIP_)(extra.)?index.url|--find.links|--trusted.host|(^|\s)-i\s+http", text)
    if path.parent.name == "requirements":
        assert "://" not in text
        assert not re.search(r"^\s*-", text, re.MULTILINE)
