"""The six commands: how they start, what they say of themselves, and what they become."""

from __future__ import annotations

import ast
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from environment import door, setup

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = ROOT / "scripts"
#: What runs before the environment exists.
BEFORE = [*door.DOORS, "environment/door.py", "environment/setup.py"]


def start(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


def test_a_newcomer_sees_the_commands_and_folders_alone() -> None:
    files = [path for path in SCRIPTS.iterdir() if path.is_file()]
    assert sorted(path.name for path in files) == sorted(door.DOORS)
    assert all(os.access(path, os.X_OK) for path in (*files, ROOT / ".ci/run"))


@pytest.mark.parametrize("name", BEFORE)
def test_starts_with_the_oldest_python_it_says(name: str) -> None:
    said = (3, 10) if name.endswith("setup.py") else (3, 7)  # the others say so to an older one
    ast.parse((SCRIPTS / name).read_text(), feature_version=said)


def test_a_python_that_is_too_old_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (SCRIPTS / "environment" / "door.py").read_text()
    monkeypatch.setattr(sys, "version_info", (3, 5, 2))
    with pytest.raises(SystemExit, match=r"this needs a python3 of at least version 3\.10 to start"):
        exec(compile(text.partition("import ast")[0], "door.py", "exec"), {})  # noqa: S102 -- our own


def test_set_up_needs_the_standard_library_only() -> None:
    names: set[str] = set()
    for file in BEFORE:
        for node in ast.walk(ast.parse((SCRIPTS / file).read_text())):
            if isinstance(node, ast.Import):
                names.update(alias.name.split(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                names.add(str(node.module).split(".")[0])
    assert names <= sys.stdlib_module_names | {"environment"}


@pytest.mark.parametrize("name", door.DOORS)
def test_help_is_there_before_the_environment_is(name: str, tmp_path: Path) -> None:
    copy = tmp_path / "scripts"
    shutil.copytree(SCRIPTS, copy, ignore=shutil.ignore_patterns("__pycache__"))
    done = start(sys.executable, "-I", str(copy / name), "--help")
    assert done.returncode == 0, done.stderr
    folder, default = door.DOORS[name]
    programs = door.programs(folder)
    assert default in ("", *programs)
    for program, text in programs.items() if len(programs) > 1 else []:
        assert f"  {program} " in done.stdout
        assert text
        assert text in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["scripts"]


def test_a_command_without_a_default_asks_for_a_name() -> None:
    done = start(sys.executable, str(SCRIPTS / "torture"), "nothing")
    assert (done.returncode, done.stdout) == (2, "")
    assert "scripts/torture NAME [--help]" in done.stderr


@pytest.mark.parametrize(
    ("command", "program", "rest"),
    [
        (["demo", "--case", "a b"], "demos.dynamic_cp", ["--case", "a b"]),
        (["bench"], "benches.costs", []),
        (["bench", "loss", "--help"], "benches.loss", ["--help"]),
        (["matrix", "--recorded"], "records.tested", ["--recorded"]),
        (["torture", "fuzz", "--seed", "1"], "tortures.fuzz", ["--seed", "1"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_arguments_reach_the_program(
    monkeypatch: pytest.MonkeyPatch, command: list[str], program: str, rest: list[str]
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(setup, "ensure", lambda layout: layout.python)
    monkeypatch.setattr("environment.setup.signal.signal", lambda *_: None)
    monkeypatch.setattr("environment.setup.os.execve", lambda *call: seen.append(call))
    monkeypatch.setattr(sys, "argv", command)
    monkeypatch.setenv("PYTHONPATH", "/opt/Megatron-LM")
    door.enter(str(SCRIPTS / command[0]))
    ((path, words, env),) = seen
    python = str(ROOT / ".venv" / "bin" / "python")
    assert path == python
    assert words == [python, str(SCRIPTS / "environment" / "inside.py"), program, *rest]
    assert env["PATH"].startswith(str(ROOT / ".venv" / "bin"))
    assert "PYTHONPATH" not in env


@pytest.mark.parametrize(
    "program",
    [
        f"{folder}.{program}"
        for folder in ("demos", "benches", "tortures", "records", "devices")
        for program in door.programs(folder)
    ],
)
def test_every_program_has_help(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(program).main(["--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage: ")


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
