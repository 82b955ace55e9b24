"""An installation as a trainer has it: a venv with overlay from its wheel, a fake upstream and a pack for it.

The packages of the environment that runs the tests (torch, ray) are linked, not installed again.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from fake_upstream import FILES as UPSTREAM
from fake_upstream import write_files

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("overlay", "compat", "patches", "startup")
FILES = (
    "pyproject.toml",
    "setup.py",
    "MANIFEST.in",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
)

PACK = {
    "acme_overlay/__init__.py": "",
    "acme_overlay/patches/__init__.py": "",
    "acme_overlay/patches/fakeup/__init__.py": "",
    "acme_overlay/patches/fakeup/scale.py": """
        from overlay.patch import Patch, Project, one_target, replaced, variant

        def version(read):
            return (read("fakeup/version.txt") or "").strip() or None

        def make_scale(original, module):
            def scale(value, factor=2):
                return original(value, factor) * 100
            return scale

        def make_run(original, module):
            def run(self, value):
                return original(self, value) + 1
            return run

        PROJECT = Project(
            name="fakeup", distributions=("fakeup",), marker="fakeup.core", read_version=version
        )
        VARIANT = variant(
            "1", replaced("fakeup.core:scale", make_scale), replaced("fakeup.core:Engine.run", make_run)
        )
        PATCH = Patch(
            id="acme/fakeup.scale",
            summary="Scale rightly",
            why="Because.",
            upstream=("fake/up#1",),
            targets=one_target(PROJECT, VARIANT),
        )
        """,
}

#: Writes what the patches of a package were tested on: what is installed beside it.
TABLE = """
import importlib, os, sys
from overlay.source.table import TABLE_FILE
from overlay.desk.prove.rows import text_of, trial
from overlay.source.own_code import of_module
from overlay.source.source import Tree
from overlay.source.table import Table
package, *names = sys.argv[1:]
patches = [importlib.import_module(f"{package}.{name}").PATCH for name in names]
tried = [trial(one, Tree(), Table(), "fakeup==1.2.0") for one in patches]
codes = [of_module(f"{package}.{name}") for name in names]
rows = [one.choices[0][0].replace(code=code) for one, code in zip(tried, codes, strict=True)]
folder = os.path.dirname(importlib.import_module(package).__file__)
with open(os.path.join(folder, TABLE_FILE), "w") as file:
    file.write(text_of({"fakeup==1.2.0": {}}, rows))
"""

#: What shows whether a process is patched: 200 with the pack's patch, 2 without.
PROBE = "import fakeup.core; print(fakeup.core.scale(1))"
ARMED = {"OVERLAY": "1", "OVERLAY_PACKS": "acme", "OVERLAY_PATCHES": "acme/*"}
PATCHED, PLAIN = "200", "2"


def clean_environment(**more: str) -> dict[str, str]:
    """Return the variables of this process without those that steer overlay or Python, and some more."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("OVERLAY", "PYTHON"))}
    return {**kept, **more}


def build_wheel(folder: Path, kind: str = "wheel") -> Path:
    """Build the wheel of the checkout, or with `editable` that of an editable installation.

    It is built from a copy of the sources, so that nothing is left behind in the checkout.
    """
    pytest.importorskip("setuptools", minversion="77")  # what pyproject.toml asks for
    copy = copy_sources(folder / "sources")
    code = f"import setuptools.build_meta as b, sys; print(b.build_{kind}(sys.argv[1]))"
    command = [sys.executable, "-W", "ignore", "-c", code, str(folder)]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.split()[-1]


def copy_sources(copy: Path) -> Path:
    """Copy what a checkout is built from."""
    for name in SOURCES:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, copy / name)
    shutil.copytree(ROOT / "docs", copy / "docs")
    return copy


class Venv:
    """A virtual environment that sees the packages of the environment that runs the tests."""

    def __init__(self, folder: Path, *, linked: bool = True) -> None:
        command = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
        subprocess.run(command, check=True, timeout=120)
        self.folder = folder
        self.python = folder / "bin" / "python"
        (self.site,) = folder.glob("lib/python*/site-packages")
        if linked:
            self.link()

    def link(self) -> None:
        """Make the packages of the test environment importable, after those that are installed here."""
        packages = [entry for entry in sys.path if entry.endswith("site-packages")]
        (self.site / "zz-linked.pth").write_text("".join(f"{entry}\n" for entry in packages))

    def install(self, wheel: Path) -> None:
        """Install a wheel with pip, as a person would, without a network."""
        command = [sys.executable, "-m", "pip", "--python", str(self.python), "--disable-pip-version-check"]
        command += ["install", "--quiet", "--no-compile", "--no-deps", "--no-index", str(wheel)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def unpack(self, wheel: Path, target: Path | None = None) -> None:
        """Place the files of a wheel as pip does, into site-packages or as with `--target`, in less time."""
        target = target or self.site
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target)
        for folder in target.glob("*.data/purelib"):
            shutil.copytree(folder, target, dirs_exist_ok=True)

    def run(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run its interpreter with clean variables and those given."""
        return subprocess.run(
            [str(self.python), *words], capture_output=True, text=True, timeout=120, check=False,
            cwd=self.folder, env=clean_environment(**environ),
        )  # fmt: skip

    def on_path(self) -> dict[str, str]:
        """Return the PATH of somebody who has activated it, without what else this machine has."""
        return {"PATH": f"{self.folder / 'bin'}:/usr/bin:/bin"}

    def read(self, *words: str, **environ: str) -> Any:
        """Run a command of overlay that succeeds, and return the JSON that it prints."""
        return self._read(0, *words, **environ)

    def read_failing(self, *words: str, **environ: str) -> Any:
        """Run a command of overlay that ends with exit code 1, and return the JSON that it prints."""
        return self._read(1, *words, **environ)

    def _read(self, code: int, /, *words: str, **environ: str) -> Any:
        done = self.run("-m", "overlay", *words, "--json", **environ)
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout)

    def write(self, files: dict[str, str]) -> None:
        """Write files into site-packages."""
        write_files(self.site, files)

    def add_distribution(self, name: str, version: str, entry_points: str = "") -> None:
        """Write the metadata of a distribution."""
        folder = f"{name.replace('-', '_')}-{version}.dist-info"
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        self.write({f"{folder}/METADATA": metadata, f"{folder}/entry_points.txt": entry_points})

    def add_table(self, package: str, *patches: str) -> None:
        """Write the table beside patches: they were tested on what is installed here."""
        done = self.run("-B", "-c", TABLE, package, *patches)
        assert done.returncode == 0, done.stderr

    def add_upstream_and_pack(self) -> None:
        """Install the fake upstream, and the pack that patches it."""
        self.write(UPSTREAM)
        self.add_distribution("fakeup", "1.2.0")
        self.write(PACK)
        self.add_table("acme_overlay.patches.fakeup", "scale")
        self.add_distribution("acme-overlay", "4.5", "[overlay.patches]\nacme = acme_overlay.patches\n")


#: What a command of Python is that shows that it ran.
RAN = ("-c", "print('ran')")


def overlay_run(venv: Venv, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run `overlay run` in an environment that is on the PATH."""
    return venv.run("-m", "overlay", "run", *words, **{**venv.on_path(), **environ})


def refused(venv: Venv, *words: str, **environ: str) -> str:
    """Return what is said of a command that is not started, as its Python would not be patched."""
    done = overlay_run(venv, *words, **environ)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    return done.stderr


def program(path: Path, text: str) -> str:
    """Write a file that can be started, and return its path."""
    path.write_text(text)
    path.chmod(0o755)
    return str(path)
