"""The environment: what makes it current, who may install, and what becomes of one that was interrupted."""

from __future__ import annotations

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
    (requirements / "environment.in").write_text("torch==1.0\npytest\n")
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n\n[tool.ruff]\nline-length = 110\n")
    (tmp_path / "overlay").mkdir()
    (tmp_path / "overlay" / "_version.py").write_text("__version__ = '0'\n")
    (tmp_path / "startup").mkdir()
    (tmp_path / "startup" / "overlay-startup.pth").write_text("import overlay\n")
    return setup.Layout(tmp_path)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replace the making of the venv and the installation by a list of the locks that were held."""
    held: list[int] = []

    def make(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        folder = Path(command[-1])
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "python").symlink_to(sys.executable)
        return subprocess.CompletedProcess(command, 0, b"")

    def install(layout: Any, env: dict[str, str], lock: int) -> None:
        # Nothing runs after a SIGKILL, so what is on disk now is what would be left.
        assert setup.recorded(layout) == ""
        held.append(lock)

    monkeypatch.setattr(setup, "find_python", lambda: sys.executable)
    monkeypatch.setattr(setup, "output", lambda command: "")
    monkeypatch.setattr("environment.setup.subprocess.run", make)
    monkeypatch.setattr(setup, "install", install)
    return held


def test_second_call_installs_nothing(layout: Any, installed: list[int]) -> None:
    for _ in range(2):
        assert setup.ensure(layout) == layout.python
    assert len(installed) == 1


@pytest.mark.parametrize(
    "changed",
    [
        "scripts/environment/requirements/constraints.txt",
        "scripts/environment/requirements/environment.in",
        "pyproject.toml",
        "overlay/_version.py",
        "startup/overlay-startup.pth",
    ],
)
def test_changed_file_installs_again(layout: Any, installed: list[int], changed: str) -> None:
    setup.ensure(layout)
    (layout.venv / "old").write_text("")
    path = layout.root / changed
    path.write_text("# new\n" + path.read_text().replace("[project]", "[project]\ndependencies = ['wrapt']"))
    assert not setup.is_current(layout)
    setup.ensure(layout)
    assert len(installed) == 2
    assert (layout.venv / "old").exists()


def test_changed_linter_setting_costs_no_installation(layout: Any, installed: list[int]) -> None:
    setup.ensure(layout)
    path = layout.root / "pyproject.toml"
    path.write_text(path.read_text().replace("110", "79"))
    assert setup.is_current(layout)


def test_foreign_environment_is_left_alone(layout: Any, installed: list[int]) -> None:
    layout.venv.mkdir()
    (layout.venv / "mine").write_text("")
    with pytest.raises(SetupError, match="was not made by this script"):
        setup.ensure(layout)
    assert (layout.venv / "mine").exists()
    assert installed == []


@pytest.mark.parametrize("record", ["", "recipe 1, Python 3.11, /elsewhere\n0\n", '{"stamps": {}}'])
def test_one_that_is_half_made_or_of_another_place_is_made_anew(
    layout: Any, installed: list[int], capsys: pytest.CaptureFixture[str], record: str
) -> None:
    setup.ensure(layout)
    (layout.venv / "old").write_text("")
    layout.record.write_text(record)
    assert not setup.is_current(layout)
    setup.ensure(layout)
    assert not (layout.venv / "old").exists()
    assert ("moved or copied" if record else "did not end") in capsys.readouterr().err
    assert not list(layout.root.glob(".venv-discarded-*"))


def test_a_folder_that_is_empty_was_left_by_a_call_that_was_killed(layout: Any, installed: list[int]) -> None:
    layout.venv.mkdir()
    setup.ensure(layout)
    assert setup.is_current(layout)


def ends_with(error: BaseException) -> Any:
    def install(*_: Any) -> None:
        raise error

    return install


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143), SetupError("no network")], ids=repr)
def test_a_first_installation_that_does_not_end_is_begun_anew(
    layout: Any, installed: list[int], monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(setup, "install", ends_with(error))
        with pytest.raises(type(error)):
            setup.ensure(layout)
    assert not setup.is_current(layout)
    (layout.venv / "half").write_text("")
    setup.ensure(layout)
    assert not (layout.venv / "half").exists()
    assert setup.is_current(layout)
    assert not list(layout.root.glob(".venv-discarded-*"))


@pytest.mark.parametrize(("error", "stays"), [(SetupError("no network"), True), (KeyboardInterrupt(), False)])
def test_a_later_installation_costs_the_environment_only_if_it_was_interrupted(
    layout: Any, installed: list[int], monkeypatch: pytest.MonkeyPatch, error: BaseException, stays: bool
) -> None:
    setup.ensure(layout)
    (layout.venv / "old").write_text("")
    layout.requirements.write_text("another\n")
    for _ in range(2):
        with monkeypatch.context() as patched:
            patched.setattr(setup, "install", ends_with(error))
            with pytest.raises(type(error)):
                setup.ensure(layout)
        assert not setup.is_current(layout)
    assert (layout.venv / "old").exists() == stays
    setup.ensure(layout)
    assert setup.is_current(layout)


def test_parallel_calls_install_once(layout: Any, installed: list[int]) -> None:
    threads = [threading.Thread(target=setup.ensure, args=(layout,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(installed) == 1
    assert setup.is_current(layout)


def test_lock_waits_for_another_process_and_survives_its_death(
    layout: Any, monkeypatch: pytest.MonkeyPatch
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
        said: list[str] = []

        # It is killed when somebody waits for it, whenever that is.
        def say(text: str) -> None:
            said.append(text)
            holder.kill()

        monkeypatch.setattr(setup, "say", say)
        with setup.locked(layout):
            assert holder.wait() == -signal.SIGKILL
    assert [text.partition(", ")[2] for text in said] == ["waiting for it"]


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
