"""A pack of patches on a library of one function, with contracts of every kind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from overlay.proving.strength import mark
from overlay.reading.source import InstalledTree

if TYPE_CHECKING:
    from pathlib import Path

CORE = "def scale(x, factor=2):\n    return x * factor + 1\n\n\ndef other(x):\n    return scale(x)\n"
#: What the patches know, and a source of the same behaviour that they do not.
UNKNOWN = CORE.replace("return x * factor + 1", "return 1 + factor * x")
PATCH = """
from overlay.patch import Patch, Project, Removal, known, one_target, replaced, variant

PROJECT = Project(name="toylib", distributions=("toylib",), marker="toylib.core",
                  read_version=lambda read: read("toylib/VERSION"))

def make(original, module):
    def {function}(x, factor=2):
        return x * factor
    return {function}

PATCH = Patch(
    id="toy/toylib.{id}", revision={revision}, summary="s", why="w", upstream=("a/b#1",),
    remove=Removal(when="it is right", test="t"),
    targets=one_target(
        PROJECT,
        variant(
            "1", ">=1,<2",
            replaced("toylib.core:{function}", make, "{digest}"), known("toylib.core:other", "{other}"),
        ),
    ),
)
"""
CONTRACT = """
from overlay.patch import Contract
from overlay.testing import with_patches

def wrong(seed):
    from toylib.core import scale
    {does}
    found = scale(int(seed) + 3)
    return "" if found == 2 * (int(seed) + 3) else f"scale is {{found}}"

CONTRACT = Contract(check=with_patches(wrong, "toy/toylib.{id}"){more})
"""
#: By patch, what its contract does before it looks, and how else it is made.
KINDS = {
    "right": ("", ""),
    "raises": ("raise ZeroDivisionError('of its own')", ""),
    "hangs": ("import time; time.sleep(600)", ""),
    "dies": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", ""),
    "leaves": ("raise SystemExit(0)", ""),
    "lacks": ("", ", before=('no_such_package',)"),
    "imports": ("import no_such_module", ""),
    "blind": ("return ''", ""),
    "harmless": ("return ''", ", harmless='it is of speed alone'"),
    "undoes": ("", ", alike=lambda seed: 'another result than without the patch'"),
    "on-gpus": ("", ", devices=('cuda',)"),
}


class Toy:
    """The library and the pack, in a folder that is first on the path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("toylib/__init__.py", "")
        self.write("toylib/VERSION", "1.2.0")
        self.core(CORE)
        for file in ("toypack/__init__.py", "toypack/toylib/__init__.py"):
            self.write(file, "")
        self.write("toypack-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: toypack\nVersion: 1\n")
        self.write("toypack-1.dist-info/entry_points.txt", "[overlay.patches]\ntoy = toypack\n")
        for name in KINDS:
            self.patch(name)

    def write(self, file: str, text: str) -> None:
        path = self.folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def core(self, text: str) -> None:
        """Write the source of the library."""
        self.write("toylib/core.py", text)

    def patch(self, name: str, **changes: Any) -> None:
        """Write a patch of what the library was written with first, and its contract."""
        here = (self.folder / "toylib/core.py").read_text()
        self.core(CORE)
        tree = InstalledTree(str(self.folder))
        digests = {"digest": tree.digest("toylib.core:scale"), "other": tree.digest("toylib.core:other")}
        self.core(here)
        does, more = KINDS[name]
        fields = {"id": name, "function": "scale", "revision": 1, **digests, **changes}
        module = f"toypack/toylib/{name.replace('-', '_')}"
        self.write(f"{module}/__init__.py", PATCH.format(**fields))
        text = CONTRACT.format(id=name, does=does or "pass", more=more)
        self.write(f"{module}/contract.py", text)

    def record(self, name: str, tried: int = 100, passed: int = 1, revision: int = 1) -> None:
        """Write what was measured of a contract."""
        mutants = {"tried": tried, "passed": passed, "run": "2026-01-01", "revision": revision}
        parameters = {"toylib.core:scale": ["(x, factor=2)"]}
        reads = {"toylib.core:scale": " ".join(map(mark, ("1", "2")))}
        entry = {"mutants": mutants, "parameters": parameters, "reads": reads}
        self.write("toypack/trust.json", json.dumps({f"toy/toylib.{name}": entry}))

    def run(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run a command of overlay's where the library and the pack are installed."""
        return self.python("-m", "overlay", *arguments, **environ)

    def python(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run Python there."""
        clean = {key: value for key, value in os.environ.items() if not key.startswith("OVERLAY")}
        clean |= {"PYTHONPATH": str(self.folder), "OVERLAY_PACKS": "toy", "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            [sys.executable, *arguments], env=clean | environ, cwd=self.folder,
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
