"""A pack of patches on a library of one function, with contracts of every kind and a table."""

from __future__ import annotations

from pathlib import Path
from subprocess import CompletedProcess

from command_line import python
from fake_upstream import write_files
from first_row import row_of

from overlay.desk.prove.rows import text_of
from overlay.patch import Patch, Project, one_target, replaced, variant
from overlay.source.own_code import of_module
from overlay.source.source import Tree
from overlay.source.table import TABLE_FILE, Row

CORE = "def scale(x, factor=2):\n    return x * factor + 1\n\n\ndef other(x):\n    return scale(x)\n"
#: Sources of the same behaviour that the patches were not tested on: one differs where nothing is replaced.
ELSEWHERE = CORE.replace("return scale(x)", "return scale(x, 2)")
UNKNOWN = CORE.replace("return x * factor + 1", "return 1 + factor * x")
#: One that upstream has mended in words of its own.
MENDED = CORE.replace("return x * factor + 1", "return factor * x")
PATCH = """
from overlay.patch import Patch, Project, one_target, replaced, variant

PROJECT = Project(name="toylib", distributions=("toylib",), marker="toylib.core",
                  read_version=lambda read: read("toylib/VERSION"))

def make(original, module):
    def scale(x, factor=2):
        return x * factor
    return scale

PATCH = Patch(
    id="toy/toylib.{id}", summary="Scale without adding one", upstream=("a/b#1",),
    why="What is scaled has one added to it, for everybody who scales. With the patch it is scaled alone.",
    targets=one_target(PROJECT, variant("1", replaced("toylib.core:scale", make), "toylib.core:other")),
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
    "raises": ("assert False, 'of its own'", ""),
    "hangs": ("import os, time; os.system('setsid sleep 600 & echo $! >> started'); time.sleep(600)", ""),
    "dies": ("import os; print('about to die', flush=True); os.abort()", ""),
    "leaves": ("raise SystemExit(0)", ""),
    "bursts": ("import os; os.environ.get('OVERLAY_PROVE') == 'alone' and os.abort()", ""),
    "lacks": ("", ", before=('no_such_package',)"),
    "imports": ("import no_such_module", ""),
    "blind": ("return ''", ""),
    "seldom": ("if int(seed) > 5: return 'not with this seed'", ""),
    "undoes": ("", ", alike=lambda seed: 'another result than without the patch'"),
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
        self.record()

    def write(self, file: str, text: str) -> None:
        write_files(self.folder, {file: text})

    def core(self, text: str) -> None:
        """Write the source of the library."""
        self.write("toylib/core.py", text)

    def patch(self, name: str) -> None:
        """Write a patch and its contract."""
        does, more = KINDS[name]
        module = f"toypack/toylib/{name.replace('-', '_')}"
        self.write(f"{module}/__init__.py", PATCH.format(id=name))
        text = CONTRACT.format(id=name, does=does or "pass", more=more)
        self.write(f"{module}/contract.py", text)

    def record(self) -> None:
        """Write what the patches were tested on, the library as it is."""
        tree = Tree(str(self.folder))
        project = Project(name="toylib", distributions=("toylib",), marker="toylib.core")
        parts = (replaced("toylib.core:scale", lambda original, _: original), "toylib.core:other")
        targets = one_target(project, variant("1", *parts))
        rows: list[Row] = []
        for name in KINDS:
            patch = Patch(id=f"toy/toylib.{name}", summary="s", why="w", upstream=(), targets=targets)
            code = of_module(f"toypack.toylib.{name.replace('-', '_')}", tree)
            found = row_of(patch, targets[0], tree, "toylib==1.2.0")
            rows += [found.replace(code=code)] if found else []
        self.write(f"toypack/toylib/{TABLE_FILE}", text_of({"toylib==1.2.0": {}}, rows))

    def run(self, *arguments: str, **environ: str) -> CompletedProcess[str]:
        """Run a command of overlay's where the library and the pack are installed."""
        return self.python("-m", "overlay", *arguments, **environ)

    def python(self, *arguments: str, **environ: str) -> CompletedProcess[str]:
        """Run Python there."""
        given = {"PYTHONPATH": str(self.folder), "OVERLAY_PACKS": "toy", "PYTHONDONTWRITEBYTECODE": "1"}
        return python(*arguments, seconds=120, folder=str(self.folder), **given | environ)
