"""The releases that are attacked, and their trees with one file changed."""

from __future__ import annotations

import ast
import copy
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from overlay.patch import Project
from overlay.source.shape import Module
from overlay.source.source import Tree
from sources import releases as listed
from sources.git_sources import FetchError
from tortures._mutations import with_helpers

MEGATRON = tuple(
    f"megatron-core=={version}"
    for version in (
        *("0.12.0", "0.12.3", "0.13.1", "0.14.0", "0.15.3"),
        *("0.16.0", "0.16.1", "0.17.1", "0.18.2", "0.19.2"),
    )
)
VERL = tuple(f"verl=={version}" for version in ("0.6.1", "0.7.0", "0.7.1", "0.8.0", "0.9.0", "0.9.1"))
SLIME = (
    *("v0.1.0", "v0.2.0", "v0.2.0.post1", "v0.2.1", "v0.2.2", "v0.2.3", "v0.2.4"),
    *("286750aa3", "v0.3.0", "v0.3.1"),
)
MILES = ("31f1ca961",)
BESIDE_VERL = "megatron-core==0.16.1"
#: What of Megatron is changed for verl's sake alone is not changed without it.
BESIDE_MEGATRON = "verl==0.8.0"


#: How many releases `releases` yields where all can be had.
COUNT = len(MEGATRON) + len(VERL) + len(SLIME) + len(MILES)


class Release(NamedTuple):
    """A release of an upstream, with what it stands beside."""

    name: str
    #: Folders that go on the path, the release first.
    folders: tuple[Path, ...]


def releases(only: str = "") -> Iterator[Release]:
    """Yield the releases whose names contain a text. Those that cannot be had are said, and left out."""
    beside = {**dict.fromkeys(VERL, BESIDE_VERL), **dict.fromkeys(MEGATRON, BESIDE_MEGATRON)}
    from_git = [f"slime {name}" for name in SLIME] + [f"miles {name}" for name in MILES]
    for name in (*MEGATRON, *VERL, *from_git):
        if only not in name:
            continue
        try:
            folders = [fetch(name)]
            if name in beside:
                folders.append(fetch(beside[name]))
        except FetchError as error:
            print(f"left out: {error}", file=sys.stderr)
            continue
        yield Release(name, tuple(folders))


def fetch(name: str) -> Path:
    """Return the folder of `NAME==VERSION` or `NAME REVISION`. Raises `FetchError` if there is none."""
    return listed.fetch(listed.Release(name))


class Pristine(Tree):
    """Releases beside each other as they are: what has been read once is kept."""

    def __init__(self, folders: tuple[Path, ...]) -> None:
        super().__init__()
        self._trees = [Tree(str(folder)) for folder in folders]

    def _of(self, module: str) -> Tree:
        top = module.partition(".")[0].partition("/")[0]
        return next((tree for tree in self._trees if tree.has(top)), self._trees[0])

    def is_first(self, site: str) -> bool:
        """Return whether a site lies in the release itself, and not in what stands beside it."""
        return self._of(site.partition(":")[0]) is self._trees[0]

    def _say(self, what: str, site: str) -> object:
        """Return what the tree that has a site says of it."""
        return self._once(lambda: getattr(self._of(site.partition(":")[0]), what)(site), "tree", what, site)

    def source(self, module: str) -> str | None:
        return self._say("source", module)  # type: ignore[return-value]

    def read(self, path: str) -> str | None:
        return self._say("read", path)  # type: ignore[return-value]

    def digest(self, site: str) -> str | None:
        return self._say("digest", site)  # type: ignore[return-value]

    def is_package(self, module: str) -> bool:
        return bool(self._say("is_package", module))

    def metadata_version(self, project: Project) -> str | None:
        found = (tree.metadata_version(project) for tree in self._trees)
        return next(filter(None, found), None)


class Changed(Tree):
    """A release of which one module has another syntax tree."""

    def __init__(self, pristine: Tree, module: str, parsed: ast.Module) -> None:
        super().__init__()
        self.pristine, self.module = pristine, module
        self._changed = Module(parsed)

    def source(self, module: str) -> str | None:
        return self.pristine.source(module)  # asked for whether there is one

    def read(self, path: str) -> str | None:
        return self.pristine.read(path)

    def is_package(self, module: str) -> bool:
        return self.pristine.is_package(module)

    def text_digest(self, module: str) -> str:
        return "changed" if module == self.module else self.pristine.text_digest(module)

    def metadata_version(self, project: Project) -> str | None:
        return self.pristine.metadata_version(project)

    def digest(self, site: str) -> str | None:
        here = site.partition(":")[0] == self.module
        return super().digest(site) if here else self.pristine.digest(site)

    def _parsed(self, module: str) -> Module:
        return self._changed if module == self.module else self.pristine._parsed(module)


def replaced(parsed: ast.Module, old: ast.stmt, new: list[ast.stmt]) -> ast.Module:
    """Return a tree in which other statements stand in the place of one. The rest of it is shared.

    They lie in the lines of that one: what is below it, and what is not, bears on the meaning of a name.
    """
    lines = range(old.lineno, (old.end_lineno or old.lineno) + 1)
    for node in new:
        for part in ast.walk(node):
            if "lineno" in part._attributes and getattr(part, "lineno", None) not in lines:
                ast.copy_location(part, old)
    found = _with(parsed, old, new)
    assert isinstance(found, ast.Module)
    return found


def _with(node: ast.AST, old: ast.stmt, new: list[ast.stmt]) -> ast.AST | None:
    """Return a copy of a node with the statement replaced somewhere inside it, `None` if it is not there."""
    for name in ("body", "orelse", "handlers", "finalbody"):
        suite: list[Any] = getattr(node, name, None) or []
        for place, item in enumerate(suite):
            if item is old:
                made: list[ast.AST] = [*new]
            elif item.lineno > old.lineno or (item.end_lineno or 0) < (old.end_lineno or 0):
                continue
            else:
                inside = _with(item, old, new)
                if inside is None:
                    continue
                made = [inside]
            fresh = copy.copy(node)
            setattr(fresh, name, [*suite[:place], *made, *suite[place + 1 :]])
            return fresh
    return None


def spliced(text: str, old: ast.stmt, new: list[ast.stmt], comment: str = "") -> str:
    """Return a source in which other statements stand in the place of one.

    A `comment` is put above it, each line of it a line.
    """
    first = min([old.lineno, *(one.lineno for one in getattr(old, "decorator_list", ()))])
    lines = text.splitlines(keepends=True)
    made = "\n".join(ast.unparse(ast.fix_missing_locations(node)) for node in new)
    said = "".join(f"# {line}\n" for line in comment.splitlines())
    block = textwrap.indent(f"{said}{made}\n", " " * old.col_offset)
    return with_helpers("".join([*lines[: first - 1], block, *lines[old.end_lineno :]]))
