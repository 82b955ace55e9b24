"""A small upstream with a defect, for tests of audits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.defect import READ, Defect, Dialect, above, switched
from overlay.patch import Known, Patch, Project, Removal, Replacement, Target, Variant, known, variant
from overlay.reading.source import InstalledTree

if TYPE_CHECKING:
    from pathlib import Path

LIB = Project(
    name="lib", distributions=("lib",), marker="lib.core", read_version=lambda read: read("lib/version.txt")
)
WRONG = "def f(x):\n    return x + 1\n"
RIGHT = "def f(x):\n    return x\n"
ODD = "def f(x):\n    return 2 * x\n"


def write(folder: Path, source: str = WRONG, version: str = "1.0") -> InstalledTree:
    """Write the upstream, and return its tree."""
    (folder / "lib").mkdir(parents=True, exist_ok=True)
    (folder / "lib/__init__.py").write_text("")
    (folder / "lib/version.txt").write_text(version)
    (folder / "lib/core.py").write_text(source)
    return InstalledTree(str(folder))


def digest(folder: Path, source: str) -> str:
    found = write(folder / "digest", source).digest("lib.core:f")
    assert found is not None
    return found


def make(original: object, module: object) -> object:
    return original


def sources(folder: Path) -> tuple[Variant, ...]:
    """Return who has the defect: a source that is wrong, and one that is right."""
    return (
        variant("1", ">=0", known("lib.core:f", digest(folder, WRONG))),
        variant(
            "2",
            ">=0",
            known("lib.core:f", digest(folder, RIGHT)),
            verdict="fixed-upstream",
            reason="it is right",
        ),
    )


def a_patch(folder: Path, *, opt_in: bool = False) -> Patch:
    wrong, right = sources(folder)
    condition = wrong.shape[0]
    assert isinstance(condition, Known)
    replacement = Replacement(site=condition.site, make=make)  # type: ignore[arg-type]
    return Patch(
        id="lib.fix",
        revision=1,
        summary="f returns what it is given",
        why="It returns another number.",
        upstream=("a/b#1",),
        remove=Removal(version="2.0", when="it is right", test="tests/x.py::test_x"),
        targets=(Target(project=LIB, variants=(wrong.replace(replacements=(replacement,)), right)),),
        met="Any job.",
        changes=("numbers",),
        opt_in=opt_in,
    )


def a_defect(folder: Path) -> Defect:
    """Return one that no patch mends."""
    return Defect(
        id="lib.f-adds",
        project=LIB,
        summary="f adds one. Nobody notices.",
        harm="silent-wrong",
        met="several ranks",
        when=((above("ranks", 1), switched("fast")),),
        variants=sources(folder),
        upstream=("a/b#1",),
        fixed="2.0",
        shown=READ,
        way_out="fast=False",
    )


DIALECT = Dialect(
    name="settings of lib",
    projects=("lib",),
    marks=("ranks", "*.ranks", "fast", "other"),
    defaults={"ranks": 1, "fast": False},
    sources=("lib/arguments.py",),
)
