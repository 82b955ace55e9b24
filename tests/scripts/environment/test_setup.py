"""The environment: when it is current, who installs, from where, and what becomes of an interrupted one."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

import pytest
from fake_upstream import write_files
from threads import at_once

from environment import setup

#: What an installation depends on.
FILES = {
    "scripts/environment/requirements.lock": "torch==1.0\nuv==1\n",
    "pyproject.toml": "[project]\nname = 'x'\n",
    "overlay/_version.py": "__version__ = '0'\n",
    "startup/overlay-startup.pth": "import overlay\n",
}


class Checkout(setup.Layout):
    """A checkout with what the set-up reads, and a uv that is a shell script and tells what it is asked."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        write_files(root, FILES)
        self.uv()

    def uv(self, installing: str = "") -> None:
        """Let uv install by a line of shell."""
        path = self.cache / "uv==1" / "bin" / "uv"
        path.parent.mkdir(parents=True, exist_ok=True)
        told = f'cat "{self.record}" - >> "{self.root}/records" </dev/null; echo "$*" >> "{self.root}/told"'
        made = f'rm -rf "{self.venv}"; mkdir -p "{self.venv}/bin"; ln -sf "{sys.executable}" "{self.python}"'
        path.write_text(f"#!/bin/sh\n{told}\ncase $1 in venv) {made};; pip) {installing or ':'};; esac\n")
        path.chmod(0o755)

    def told(self) -> list[str]:
        """Return what uv was asked, and forget it."""
        path = self.root / "told"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "a checkout")


def test_the_second_call_starts_no_tool(checkout: Checkout) -> None:
    assert setup.ensure(checkout) == checkout.python
    venv, packages, own = checkout.told()
    assert venv.startswith("venv ")
    assert packages.endswith(f"--requirements {checkout.requirements}")
    assert own.endswith(f"--editable {checkout.root}")
    # Nothing runs after a SIGKILL, so what is on disk meanwhile is what would be left.
    assert (checkout.root / "records").read_text() == ""
    assert setup.ensure(checkout) == checkout.python
    assert checkout.told() == []


@pytest.mark.parametrize("changed", FILES)
def test_a_changed_file_installs_again(checkout: Checkout, changed: str) -> None:
    setup.ensure(checkout)
    checkout.told()
    path = checkout.root / changed
    path.write_text("# new\n" + path.read_text())
    setup.ensure(checkout)
    assert [line.split()[0] for line in checkout.told()] == ["pip", "pip"]


def test_an_environment_of_somebody_else_is_left_alone(checkout: Checkout) -> None:
    checkout.venv.mkdir()
    (checkout.venv / "mine").touch()
    with pytest.raises(setup.SetupError, match="was not made by this script"):
        setup.ensure(checkout)
    assert checkout.told() == []
    (checkout.venv / "mine").unlink()
    setup.ensure(checkout)  # an empty one was left by a call that was killed
    assert setup.is_current(checkout)


@pytest.mark.parametrize("record", ["", "uv, Python 3.11, /elsewhere\n0\n", '{"stamps": {}}'])
def test_one_that_is_half_made_or_was_moved_is_made_anew(
    checkout: Checkout, capsys: pytest.CaptureFixture[str], record: str
) -> None:
    setup.ensure(checkout)
    (checkout.venv / "old").touch()
    checkout.record.write_text(record)
    setup.ensure(checkout)
    assert not (checkout.venv / "old").exists()
    assert ("moved" if record else "did not end") in capsys.readouterr().err
    assert setup.is_current(checkout)


@pytest.mark.parametrize(("ends", "error"), [("exit 2", setup.SetupError), ("kill -9 $$", SystemExit)])
def test_an_installation_that_was_killed_costs_the_environment_and_one_that_failed_does_not(
    checkout: Checkout, ends: str, error: type[BaseException]
) -> None:
    for first in (True, False):
        checkout.uv(ends)
        with pytest.raises(error):
            setup.ensure(checkout)
        assert not setup.is_current(checkout)
        (checkout.venv / "old").touch()
        checkout.uv()
        setup.ensure(checkout)
        assert setup.is_current(checkout)
        assert (checkout.venv / "old").exists() == (ends == "exit 2" and not first)
        checkout.requirements.write_text("another==1\nuv==1\n")


def test_a_missing_python_is_a_message_that_says_what_to_install(checkout: Checkout) -> None:
    (checkout.cache / "uv==1/bin/uv").write_text("#!/bin/sh\nexit 2\n")
    with pytest.raises(setup.SetupError, match=r"CPython 3\.11 is needed, .*`apt-get install python3\.11`"):
        setup.ensure(checkout)
    assert not setup.is_current(checkout)
    checkout.uv()
    setup.ensure(checkout)
    assert setup.is_current(checkout)


def test_calls_at_once_install_once(checkout: Checkout) -> None:
    at_once(lambda _: setup.ensure(checkout), 4)
    assert len(checkout.told()) == 3
    assert setup.is_current(checkout)


def test_a_tool_inherits_the_lock(checkout: Checkout) -> None:
    checkout.uv(f'readlink /proc/$$/fd/* >> "{checkout.root}/told" || :')
    setup.ensure(checkout)
    assert str(checkout.cache / "environment.lock") in checkout.told()


def test_settings_for_other_environments_are_out_of_the_way(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PIP_CONSTRAINT", "PIP_USER", "UV_CONSTRAINT", "UV_SYSTEM_PYTHON", "PYTHONPATH"):
        monkeypatch.setenv(name, "/opt/other")
    monkeypatch.setenv("PIP_PROXY", "kept")
    env = setup.child_environment(checkout)
    assert env["PIP_PROXY"] == "kept"
    assert "/opt/other" not in env.values()


def test_uv_installs_from_where_pip_would(checkout: Checkout, tmp_path: Path) -> None:
    """The variables of pip come before its files, and those of uv before both."""
    file = tmp_path / "pip.conf"
    file.write_text(
        "[global]\nindex-url = file:///theirs\nextra-index-url =\n  file:///more\n  file:///others\n"
        "find-links = /wheels /more/wheels\nproxy = file:///proxy\n"
    )
    clean = {name: text for name, text in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    given = {"PIP_CONFIG_FILE": str(file), "PIP_INDEX_URL": "file:///mine", "ALL_PROXY": "file:///own"}
    found = setup.settings_of_uv(checkout, {**clean, **given})
    assert found["UV_DEFAULT_INDEX"] == "file:///mine"
    assert found["UV_INDEX"].endswith("file:///more file:///others")
    assert found["UV_FIND_LINKS"].endswith("/wheels,/more/wheels")
    assert "ALL_PROXY" not in found


def test_pip_installs_uv_where_the_path_has_it_only_if_pip_cannot(
    checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkout.cache / "uv==1").rename(checkout.cache / "uv==1.part")  # as a call that was killed leaves it
    with zipfile.ZipFile(tmp_path / "uv-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("uv-1.data/scripts/uv", "#!/bin/sh\n")
        wheel.writestr("uv-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: uv\nVersion: 1\n")
        wheel.writestr(
            "uv-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("uv-1.dist-info/RECORD", "")
    env = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}
    monkeypatch.setattr("environment.setup.shutil.which", lambda name: None)
    with pytest.raises(setup.SetupError, match="could not install uv"):
        setup.find_uv(checkout, env)
    monkeypatch.setattr("environment.setup.shutil.which", lambda name: f"/opt/{name}")
    assert setup.find_uv(checkout, env) == "/opt/uv"
    made = setup.find_uv(checkout, {**env, "PIP_FIND_LINKS": str(tmp_path)})
    assert made == str(checkout.cache / "uv==1" / "bin" / "uv")
    assert Path(made).read_text() == "#!/bin/sh\n"
