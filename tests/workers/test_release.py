"""What is released: the wheel file by file, installed as a stranger installs it, and the changelog."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest
from worksite import ROOT, Venv, build_wheel, clean_environment, copy_sources

import overlay

#: Where the packages of a wheel come from.
ROOMS = {
    "overlay/compat/": ROOT / "compat",
    "overlay/patches/": ROOT / "patches",
    "overlay/": ROOT / "overlay",
}


def sources() -> dict[str, Path]:
    """Return every file of the three rooms, by the name that it has in a wheel."""
    return {
        f"{prefix}{path.relative_to(folder)}": path
        for prefix, folder in ROOMS.items()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def metadata(wheel: Path) -> Any:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


# -- the wheel -------------------------------------------------------------------------------------


def test_the_wheel_holds_every_file_and_no_other(wheel: Path) -> None:
    expected = sources()
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        data = {name: name.partition(".data/purelib/")[2] for name in names if ".data/" in name}
        assert names - set(data) == set(expected)
        assert sorted(data.values()) == ["overlay-startup.pth", "overlay-startup.start"]
        for name, path in expected.items():
            assert archive.read(name) == path.read_bytes(), name
        for name, inside in data.items():
            assert archive.read(name) == (ROOT / "startup" / inside).read_bytes(), name


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    said = metadata(wheel)
    assert said["Name"] == "megatron-overlay"
    assert said["Version"] == overlay.__version__
    needed = {requirement for requirement in said.get_all("Requires-Dist") if "extra ==" not in requirement}
    assert {requirement.partition(">")[0] for requirement in needed} == {"packaging", "tomli"}
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/entry_points.txt"))
        points = archive.read(name).decode()
    assert "overlay = overlay.cli:main" in points
    assert "[verl.plugins]" in points


def test_the_source_distribution_makes_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    archive = build_wheel(tmp_path, "sdist")
    shutil.unpack_archive(archive, tmp_path / "unpacked", filter="data")
    (folder,) = (tmp_path / "unpacked").iterdir()
    code = f"import setuptools.build_meta as b; print(b.build_wheel({str(tmp_path)!r}))"
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(tmp_path / done.stdout.split()[-1]) as other:
        names = [name for name in one.namelist() if not name.endswith("/RECORD")]
        assert sorted(one.namelist()) == sorted(other.namelist())
        assert [one.read(name) for name in names] == [other.read(name) for name in names]


def test_what_was_deleted_since_the_last_installation_is_in_no_wheel(tmp_path: Path) -> None:
    """As after `git pull` in the clone that it is installed from."""
    copy = copy_sources(tmp_path / "sources")
    for there in (True, False):
        late = copy / "patches/late.py"
        late.write_text("") if there else late.unlink()
        code = f"import setuptools.build_meta as b; print(b.build_wheel({str(tmp_path)!r}))"
        command = [sys.executable, "-W", "ignore", "-c", code]
        done = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=180, check=False)
        assert done.returncode == 0, done.stderr
        with zipfile.ZipFile(tmp_path / done.stdout.split()[-1]) as archive:
            assert ("overlay/patches/late.py" in archive.namelist()) is there


def test_a_stranger_installs_it(wheel: Path, tmp_path: Path) -> None:
    venv = Venv(tmp_path / "venv", linked=False)
    before = {path for path in venv.folder.rglob("*") if path.is_file()}
    pip = [sys.executable, "-m", "pip", "--python", str(venv.python), "--disable-pip-version-check"]

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        kept = {name: text for name, text in clean_environment().items() if name != "VIRTUAL_ENV"}
        return subprocess.run(
            [*pip, *words], capture_output=True, text=True, timeout=300, check=False, env=kept
        )

    # With what it needs, from the package index, and nothing of this environment.
    done = run("install", "--quiet", "--no-compile", "--only-binary=:all:", str(wheel))
    if done.returncode != 0:
        probe = run("download", "--quiet", "--no-deps", "--dest", str(tmp_path), "packaging")
        if probe.returncode != 0:
            pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr
    assert run("check").returncode == 0
    listed = {line.partition("==")[0].lower() for line in run("freeze").stdout.splitlines()}
    assert {name.partition(" ")[0] for name in listed} - {"tomli"} == {"megatron-overlay", "packaging"}

    assert venv.read("doctor", OVERLAY="1", **venv.on_path())["armed"]
    assert venv.read("list")
    assert venv.read("plan")["verdicts"]
    code = "import sys; print('overlay.launch.startup' in sys.modules)"
    assert venv.run("-c", code, OVERLAY="1").stdout == "True\n"
    assert venv.run("-c", code).stdout == "False\n"
    version = subprocess.run(
        [venv.folder / "bin" / "overlay", "--version"], capture_output=True, text=True, timeout=60, check=True
    )
    assert version.stdout == f"overlay {overlay.__version__}\n"
    # The files that are no Python code are there too.
    assert venv.read("suite", "list")

    run("uninstall", "--yes", "--quiet", *listed)
    left = {path for path in venv.site.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert left <= before


# -- the changelog ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted((ROOT / "changes").glob("*.md")), ids=lambda path: path.stem)
def test_a_change_is_a_list_item(path: Path) -> None:
    lines = path.read_text().splitlines()
    if path.name != "README.md":
        assert lines[0].startswith("- ")
        assert [line for line in lines if not line.startswith(("- ", "  ")) or len(line) > 120] == []


def test_a_release_gathers_the_changes(tmp_path: Path) -> None:
    """With the version that the package says, in order of the files' names."""
    start = "# Changes\n\n<!-- towncrier release notes start -->\n"
    for name in ("pyproject.toml", "CHANGELOG.md", "overlay/_version.py", "changes/changelog.jinja"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "overlay/__init__.py").write_text('__version__ = "0.10.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(f"{start}\n## 0.9.0 (2030-01-01)\n\n- Old.\n")
    for name, text in {
        "README": "How.\n",
        "b": "- B.\n",
        "a": "- A, of\n  two lines.\n- And more.\n",
    }.items():
        (tmp_path / f"changes/{name}.md").write_text(text)
    command = [sys.executable, "-m", "towncrier", "build", "--yes", "--date", "2030-01-02"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    new = "## 0.10.0 (2030-01-02)\n\n- A, of\n  two lines.\n- And more.\n- B.\n"
    log = (tmp_path / "CHANGELOG.md").read_text()
    assert log == f"{start}\n{new}\n## 0.9.0 (2030-01-01)\n\n- Old.\n"
    assert sorted(path.name for path in (tmp_path / "changes").iterdir()) == ["README.md", "changelog.jinja"]
