"""A project with one function, a patch of it, and tables: what decisions are tried on."""

from __future__ import annotations

from typing import Any

from fake_upstream import MemoryTree
from first_row import row_of

from overlay.patch import Fact, Patch, Project, Target, Variant, replaced
from overlay.patch import variant as variant_of
from overlay.source.decide import decide
from overlay.source.source import Tree
from overlay.source.table import Row, Table, files_digest
from overlay.verdict import Verdict

F = "lib.core:f"
FILES = {
    "lib/__init__.py": "",
    "lib/VERSION": "1.2.0",
    "lib/core.py": "def f(x):\n    return x\n\nclass A:\n    def g(self):\n        return 1\n",
}
PROJECT = Project(
    name="lib", distributions=("lib",), marker="lib.core", read_version=lambda read: read("lib/VERSION")
)
OTHER = Project(
    name="other", distributions=("other",), marker="other", read_version=lambda read: read("other/VERSION")
)


def tree(**changes: str) -> MemoryTree:
    names = {"version": "lib/VERSION", "core": "lib/core.py", "new": "lib/new.py"}
    return MemoryTree({**FILES, **{names[key]: text for key, text in changes.items()}})


def never(original: Any, module: Any) -> Any:
    raise AssertionError


def variant(*parts: Fact | str, site: str = F, name: str = "1") -> Variant:
    """Return a variant that replaces a site, and asks for more."""
    return variant_of(name, replaced(site, never), *parts)


def patch(*variants: Variant, name: str = "lib.f", tells: tuple[str, ...] = (), **fields: Any) -> Patch:
    others: tuple[Target, ...] = fields.pop("others", ())
    target = Target(project=PROJECT, variants=variants or (variant(),), tells=tells)
    return Patch(id=name, summary="s", why="w", upstream=("a/b#1",), targets=(target, *others), **fields)


def rows(*patches: Patch, on: Tree | None = None, name: str = "lib==1.2.0") -> list[Row]:
    """Return the rows of patches that passed on a source, for the projects of which a variant fits there."""
    source = tree() if on is None else on
    made = (row_of(one, target, source, name) for one in patches for target in one.targets)
    return [row for row in made if row is not None]


def quiet(subject: Patch, source: Tree, name: str = "lib==2.0", **fields: Any) -> Row:
    """Return the row that says of a source that it needs nothing."""
    (target, *_) = subject.targets
    sites = {site: source.digest(site) for site in target.sites()}
    usual = {"patch": subject.id, "target": target.project.name, "verdict": "not-needed", "sites": sites}
    return Row(**{**usual, "on": {files_digest(target, source): [name]}, **fields})


def look(subject: Patch, source: Tree | None = None, *more: Row, on: Tree | None = None) -> Verdict:
    """Return what is decided on a patch that was tested on a source, and of which there are more rows."""
    return decide(subject, tree() if source is None else source, Table([*rows(subject, on=on), *more]))
