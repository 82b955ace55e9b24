"""A project with one function, and a patch of it: what decisions are tried on."""

from __future__ import annotations

from typing import Any

from fake_upstream import MemoryTree

from overlay.patch import Absent, Known, Patch, Present, Project, Removal, Replacement, Target, Variant

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


def known(site: str = "lib.core:f", files: dict[str, str] = FILES) -> Known:
    """Return the condition that a site is as it is in some files."""
    return Known(site=site, digests=(MemoryTree(files).digest(site) or "",))


def never(original: Any, module: Any) -> Any:
    raise AssertionError


def variant(**fields: Any) -> Variant:
    site = fields.pop("site", "lib.core:f")
    if "shape" not in fields:
        fields["shape"] = (known(site),)
    if fields.get("verdict", "apply") == "apply":
        fields.setdefault("replacements", (Replacement(site=site, make=never),))
    return Variant(**{"name": "1", "versions": ">=1,<2", **fields})


def patch(*variants: Variant, name: str = "lib.f", others: tuple[Target, ...] = (), **fields: Any) -> Patch:
    return Patch(
        id=name, revision=1, summary="s", why="w", upstream=("a/b#1",),
        remove=Removal(version="2.0", when="it is right", test="t"),
        targets=(Target(project=PROJECT, variants=variants or (variant(),)), *others), **fields,
    )  # fmt: skip


GONE = variant(
    name="2",
    versions=">=2",
    shape=(Absent(site="lib.core:f"), Present(site="lib.new")),
    verdict="superseded",
    reason="moved",
)
