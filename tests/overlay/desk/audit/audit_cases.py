"""A small upstream with a defect, for tests of audits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from overlay.defect import READ, Defect, Dialect, above, switched
from overlay.patch import Patch, Project, one_target, replaced, variant
from overlay.source.source import Tree
from overlay.source.table import Row, Table

LIB = Project(
    name="lib", distributions=("lib",), marker="lib.core", read_version=lambda read: read("lib/version.txt")
)
WRONG = "def f(x):\n    return x + 1\n"
RIGHT = "def f(x):\n    return x\n"
ODD = "def f(x):\n    return 2 * x\n"


def write(folder: Path, source: str = WRONG, version: str = "1.0") -> Tree:
    """Write the upstream, and return its tree."""
    (folder / "lib").mkdir(parents=True, exist_ok=True)
    (folder / "lib/__init__.py").write_text("")
    (folder / "lib/version.txt").write_text(version)
    (folder / "lib/core.py").write_text(source)
    return Tree(str(folder))


def make(original: Any, module: object) -> Any:
    return original


def a_patch(*, opt_in: bool = False) -> Patch:
    return Patch(
        id="lib.fix",
        summary="f returns what it is given",
        why="It returns another number.",
        upstream=("a/b#1",),
        targets=one_target(LIB, variant("1", replaced("lib.core:f", make))),
        met="Any job.",
        changes=("numbers",),
        opt_in=opt_in,
    )


def a_defect() -> Defect:
    """Return one that no patch fixes."""
    return Defect(
        id="lib.f-adds",
        project=LIB,
        summary="f adds one. Nobody notices.",
        harm="silent-wrong",
        met="several ranks",
        when=((above("ranks", 1), switched("fast")),),
        sites=("lib.core:f",),
        upstream=("a/b#1",),
        fixed="2.0",
        shown=READ,
        way_out="fast=False",
    )


def a_table(folder: Path, defect: Defect) -> Table:
    """Return what was looked at: a source that is wrong, and one that is right."""
    rows = []
    for verdict, source, name in (("apply", WRONG, "lib==1.0"), ("not-needed", RIGHT, "lib==2.0")):
        sites = {"lib.core:f": write(folder / verdict, source).digest("lib.core:f")}
        for item, which in (("lib.fix", "1"), (defect.id, "")):
            variant = which if verdict == "apply" else ""
            row = Row(patch=item, target="lib", verdict=verdict, variant=variant, sites=sites)
            rows.append(row.replace(on={f"{item}{verdict}": [name]}))
    return Table(rows)


DIALECT = Dialect(
    name="settings of lib",
    projects=("lib",),
    marks=("ranks", "*.ranks", "fast", "other"),
    defaults={"ranks": 1, "fast": False},
    sources=("lib/arguments.py",),
)
