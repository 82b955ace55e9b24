"""Installing: with uv where it can be had, with pip where not, and from the places that pip is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from environment import installers, setup
from environment.python import SetupError

CONFIGURED = """cat <<'END'
global.extra-index-url='file:///more\\nfile:///others'
:env:.index-url='file:///mine'
global.index-url='file:///theirs'
global.find-links='/wheels /more wheels'
global.quiet='1'
END"""


class Place:
    """A checkout whose Python, and a uv on whose path, are scripts that tell what they were asked for."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.layout = setup.Layout(root / "a checkout")
        self.path = root / "bin"
        self.layout.python.parent.mkdir(parents=True)
        self.path.mkdir()
        self.program(self.layout.python, "exit 0")

    def program(self, path: Path, install: str) -> None:
        """Write a program that answers `pip config` and `--version`, and installs by a line of shell."""
        answers = f'case "$*" in *config*) {CONFIGURED}\nexit;; --version) exit;; esac'
        path.write_text(f'#!/bin/sh\n{answers}\n(echo "$0 $*"; env) >> {self.root}/told\n{install}\n')
        path.chmod(0o755)

    def install(self, **settings: str) -> list[str]:
        """Install, and return what the programs told: command lines, and variables."""
        with (self.root / "lock").open("w") as lock:
            env = {"PATH": f"{self.path}:{os.defpath}", **settings}
            installers.install(self.layout, env, lock.fileno())
        return self.told()

    def told(self) -> list[str]:
        return (self.root / "told").read_text().splitlines()


def commands(told: list[str]) -> list[str]:
    return [f"{Path(line.partition(' -')[0]).name.split()[0]}" for line in told if " install" in line]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    made = Place(tmp_path)
    found = made.path / "uv"
    monkeypatch.setattr(
        "environment.installers.shutil.which", lambda name: str(found) if found.exists() else None
    )
    return made


def test_uv_installs_what_is_pinned_from_where_pip_would(place: Place) -> None:
    place.program(place.path / "uv", "exit 0")
    told = place.install()
    assert commands(told) == ["uv", "uv"]
    first, second = (line for line in told if " install " in line)
    for path in (place.layout.constraints, place.layout.requirements):
        assert f" {path}" in first
    assert second.endswith(f"--no-build-isolation --editable {place.layout.root}")
    assert "UV_DEFAULT_INDEX=file:///mine" in told
    assert "UV_INDEX=file:///more file:///others" in told
    assert "UV_FIND_LINKS=/wheels,/more,wheels" in told
    assert f"UV_BUILD_CONSTRAINT={place.layout.constraints}" in told


def test_what_uv_is_told_itself_comes_first(place: Place) -> None:
    place.program(place.path / "uv", "exit 0")
    told = place.install(UV_DEFAULT_INDEX="file:///uv")
    assert "UV_DEFAULT_INDEX=file:///uv" in told
    assert "UV_DEFAULT_INDEX=file:///mine" not in told


def test_uv_is_installed_where_there_is_none(place: Place) -> None:
    own = place.layout.python.with_name("uv")
    place.program(place.root / "made", "exit 0")
    place.program(place.layout.python, f'cp {place.root}/made "{own}"')
    assert commands(place.install()) == ["python", "uv", "uv"]
    assert commands(place.install())[3:] == ["uv", "uv"]


def test_pip_installs_where_uv_cannot_be_had(place: Place) -> None:
    place.program(place.layout.python, 'case "$*" in *uv) exit 1;; esac')
    told = place.install()
    assert commands(told) == ["python"] * 3
    address = place.layout.constraints.as_uri()
    assert " " not in address
    assert told.count(f"PIP_CONSTRAINT={address}") == told.count(f"PIP_BUILD_CONSTRAINT={address}") == 2


def test_pip_tries_where_uv_fails_and_its_failure_is_told(
    place: Place, capfd: pytest.CaptureFixture[str]
) -> None:
    place.program(place.path / "uv", "exit 2")
    assert commands(place.install()) == ["uv", "python", "python"]
    place.program(place.layout.python, "echo No space left on device; exit 1")
    with pytest.raises(SetupError, match="could not be installed: see above"):
        place.install()
    said = capfd.readouterr()
    assert "No space left on device" in said.err
    assert said.out == ""


def test_nobody_goes_on_after_a_tool_that_was_killed(place: Place) -> None:
    """It may have left half a package, which the next tool would take for a whole one."""
    place.program(place.path / "uv", "kill -9 $$")
    with pytest.raises(SetupError, match="ended with signal 9"):
        place.install()
    assert commands(place.told()) == ["uv"]


def test_the_tool_inherits_the_lock(place: Place) -> None:
    place.program(place.path / "uv", f'readlink /proc/$$/fd/* >> "{place.root}/told"')
    assert str(place.root / "lock") in place.install()
