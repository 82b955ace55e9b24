"""The environment: what makes it current, who may install, and what becomes of one that was interrupted."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from environment import setup
from environment.python import SetupError


@pytest.fixture
def layout(tmp_path: Path) -> setup.Layout:
    """A checkout with nothing but what the set-up reads."""
    requirements = tmp_path / "scripts" / "environment" / "requirements"
    requirements.mkdir(parents=True)
    (requirements / "constraints.txt").write_text("torch==1.0\n")
    (requirements / "demo.in").write_text("torch==1.0\nverl==1.0\n")
    (requirements / "test.in").write_text("pytest\n")
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n\n[tool.ruff]\nline-length = 110\n")
    (tmp_path / "overlay").mkdir()
    (tmp_path / "overlay" / "_version.py").write_text("__version__ = '0'\n")
    (tmp_path / "startup").mkdir()
    (tmp_path / "startup" / "overlay-startup.pth").write_text("import overlay\n")
    return setup.Layout(tmp_path)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace the making of the venv and the installation by a list of the profiles that were asked for."""
    asked: list[str] = []

    def make(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        folder = Path(command[-1])
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "python").symlink_to(sys.executable)
        return subprocess.CompletedProcess(command, 0, b"")

    def install(profile: str, layout: Any, env: dict[str, str], lock: int) -> None:
        assert lock > 2
        asked.append(profile)

    monkeypatch.setattr(setup, "find_python", lambda: sys.executable)
    monkeypatch.setattr(setup, "output", lambda command: "")
    monkeypatch.setattr("environment.setup.subprocess.run", make)
    monkeypatch.setattr(setup, "install", install)
    return asked


def test_second_call_installs_nothing(layout: Any, installed: list[str]) -> None:
    assert setup.ensure("demo", layout) == layout.python
    assert installed == ["demo"]
    setup.ensure("demo", layout)
    assert installed == ["demo"]


def test_test_tools_are_added_to_the_environment_of_the_demo(layout: Any, installed: list[str]) -> None:
    setup.ensure("demo", layout)
    setup.ensure("test", layout)
    assert installed == ["demo", "test"]
    assert setup.is_current("demo", layout)


def test_environment_of_the_tests_serves_the_demo(layout: Any, installed: list[str]) -> None:
    setup.ensure("test", layout)
    setup.ensure("demo", layout)
    assert installed == ["test"]


@pytest.mark.parametrize(
    "changed",
    [
        "scripts/environment/requirements/constraints.txt",
        "scripts/environment/requirements/demo.in",
        "pyproject.toml",
        "overlay/_version.py",
        "startup/overlay-startup.pth",
    ],
)
def test_changed_file_installs_again(layout: Any, installed: list[str], changed: str) -> None:
    setup.ensure("test", layout)
    path = layout.root / changed
    path.write_text("# new\n" + path.read_text().replace("[project]", "[project]\ndependencies = ['wrapt']"))
    assert not setup.is_current("demo", layout)
    assert not setup.is_current("test", layout)
    setup.ensure("demo", layout)
    assert installed == ["test", "demo"]
    assert not setup.is_current("test", layout)


def test_changed_test_tools_leave_the_demo_alone(layout: Any, installed: list[str]) -> None:
    setup.ensure("test", layout)
    (layout.requirements / "test.in").write_text("pytest\nmypy\n")
    assert setup.is_current("demo", layout)
    setup.ensure("test", layout)
    assert installed == ["test", "test"]


def test_changed_linter_setting_costs_no_installation(layout: Any, installed: list[str]) -> None:
    setup.ensure("demo", layout)
    path = layout.root / "pyproject.toml"
    path.write_text(path.read_text().replace("110", "79"))
    assert setup.is_current("demo", layout)


@pytest.mark.parametrize("state", ["", "{", "[]", '{"stamps": 1}', "null"])
def test_unreadable_record_is_no_record(layout: Any, state: str) -> None:
    layout.venv.mkdir()
    layout.state.write_text(state)
    assert setup.read_state(layout) is None
    assert not setup.is_current("demo", layout)


def test_foreign_environment_is_left_alone(layout: Any, installed: list[str]) -> None:
    layout.venv.mkdir()
    (layout.venv / "mine").write_text("")
    with pytest.raises(SetupError, match="was not made by this script"):
        setup.ensure("demo", layout)
    assert (layout.venv / "mine").exists()
    assert installed == []


def test_moved_checkout_gets_a_new_environment(
    layout: Any, installed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    setup.ensure("demo", layout)
    (layout.venv / "old").write_text("")
    setup.write_state(layout, {**(setup.read_state(layout) or {}), "root": "/elsewhere", "stamps": {}})
    setup.ensure("demo", layout)
    assert not (layout.venv / "old").exists()
    assert "moved or copied" in capsys.readouterr().err
    assert not list(layout.root.glob(".venv-discarded-*"))


def ends_with(error: BaseException) -> Any:
    def install(*_: Any) -> None:
        raise error

    return install


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143), SetupError("no network")], ids=repr)
def test_a_first_installation_that_does_not_end_is_begun_anew(
    layout: Any, installed: list[str], monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(setup, "install", ends_with(error))
        with pytest.raises(type(error)):
            setup.ensure("demo", layout)
    assert not setup.is_current("demo", layout)
    (layout.venv / "half").write_text("")
    setup.ensure("demo", layout)
    assert not (layout.venv / "half").exists()
    assert setup.is_current("demo", layout)
    assert not list(layout.root.glob(".venv-discarded-*"))


@pytest.mark.parametrize(("error", "stays"), [(SetupError("no network"), True), (KeyboardInterrupt(), False)])
def test_a_later_installation_costs_the_environment_only_if_it_was_interrupted(
    layout: Any, installed: list[str], monkeypatch: pytest.MonkeyPatch, error: BaseException, stays: bool
) -> None:
    setup.ensure("demo", layout)
    (layout.venv / "old").write_text("")
    for _ in range(2):
        with monkeypatch.context() as patched:
            patched.setattr(setup, "install", ends_with(error))
            with pytest.raises(type(error)):
                setup.ensure("test", layout)
        assert not setup.is_current("test", layout)
    assert (layout.venv / "old").exists() == stays
    setup.ensure("test", layout)
    assert setup.is_current("test", layout)


def test_a_killed_process_leaves_no_stamp(
    layout: Any, installed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing runs after a SIGKILL, so what is on disk during the installation is what is left."""

    def install(*_: Any) -> None:
        assert not setup.is_current("demo", layout)
        seen.append(json.loads(layout.state.read_text())["installing"])

    seen: list[str] = []
    monkeypatch.setattr(setup, "install", install)
    setup.ensure("demo", layout)
    setup.ensure("test", layout)
    assert seen == ["demo", "test"]


def test_parallel_calls_install_once(layout: Any, installed: list[str]) -> None:
    threads = [threading.Thread(target=setup.ensure, args=("demo", layout)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert installed == ["demo"]
    assert setup.is_current("demo", layout)


def test_lock_waits_for_another_process_and_survives_its_death(
    layout: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    code = (
        "import fcntl, os, sys, time\n"
        "fcntl.flock(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)\n"
        "print('held', flush=True)\n"
        "time.sleep(60)\n"
    )
    layout.lock.parent.mkdir()
    with subprocess.Popen([sys.executable, "-c", code, str(layout.lock)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        timer = threading.Timer(0.5, holder.kill)
        timer.start()
        with setup.locked(layout):
            assert holder.wait(10) == -signal.SIGKILL
        timer.join()
    assert "waiting for it" in capsys.readouterr().err


def test_settings_for_other_environments_are_out_of_the_way(
    layout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PIP_CONSTRAINT", "PIP_USER", "UV_CONSTRAINT", "UV_SYSTEM_PYTHON", "PYTHONPATH"):
        monkeypatch.setenv(name, "/opt/other")
    monkeypatch.setenv("PIP_PROXY", "kept")
    monkeypatch.setenv("UV_INDEX", "kept")
    env = setup.child_environment(layout)
    assert (env["PIP_PROXY"], env["UV_INDEX"]) == ("kept", "kept")
    assert "/opt/other" not in env.values()
