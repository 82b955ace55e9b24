"""A small upstream of the tests' own, written to disk and imported for real."""

from __future__ import annotations

import contextlib
import importlib
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from first_row import row_of

from overlay.patch import Patch, Project, Target, Variant, replaced, variant
from overlay.runtime.engine import Engine
from overlay.source.source import Tree
from overlay.source.table import Row, Table

#: The fixture that makes engines over given patches.
Engines = Callable[..., Engine]

PACKAGE = "fakeup"

#: A package with what upstreams have: functions, methods of all kinds, a from-import, an alias.
FILES = {
    "fakeup/__init__.py": "",
    "fakeup/version.txt": "1.2.0\n",
    "fakeup/core.py": '''
        """Core."""

        def scale(value, factor=2):
            """Scale."""
            return value * factor

        class Engine:
            def run(self, value):
                return scale(value)

            @staticmethod
            def fixed(value):
                return value + 1

            @classmethod
            def named(cls, value):
                return cls.__name__, value
        ''',
    "fakeup/user.py": """
        from fakeup.core import scale

        def use(value):
            return scale(value)
        """,
}


def read_version(read: Callable[[str], str | None]) -> str | None:
    """Read the version of the fake project."""
    text = read("fakeup/version.txt")
    return text.strip() if text else None


PROJECT = Project(
    name="fakeup", distributions=("fakeup-dist",), marker="fakeup.core", read_version=read_version
)


#: A file that holds a patch of nothing, to be given its id.
PATCH_FILE = """
from overlay.patch import Patch
PATCH = Patch(id="{id}", summary="s", why="w", upstream=(), targets=())
"""


#: What the patches of a test were "tested on": the rows of its table.
TESTED: list[Row] = []


def tables() -> Table:
    """Return the table of a test, as it is when it is asked."""
    return Table(load=lambda _: TESTED)


def tested(patch: Patch, tree: Tree, name: str = "here") -> None:  # noqa: PT028 -- no test
    """Note in the table of a test that a patch was tested on a source, with the variants that fit there."""
    for target in patch.targets:
        TESTED.extend(filter(None, [row_of(patch, target, tree, name)]))


tested.__test__ = False  # type: ignore[attr-defined]


def untested(patch: Patch) -> Patch:
    """Take out of the table of a test whatever a patch was tested on, and return the patch."""
    TESTED[:] = [row for row in TESTED if row.patch != patch.id]
    return patch


def write_files(folder: Path, files: dict[str, str]) -> None:
    """Write texts into files below a folder, by their paths in it, without an indentation of all lines."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


def triple(original: Any, module: ModuleType) -> Any:
    """Make the replacement of `fakeup.core:scale`."""

    def scale(value: Any, factor: int = 2) -> Any:
        return original(value, factor) * 100

    return scale


def failing(message: str, error: type[Exception] = RuntimeError) -> Any:
    """Return a factory that raises."""

    def make(original: Any, module: ModuleType) -> Any:
        raise error(message)

    return make


class Upstream:
    """The fake upstream on disk."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, **files: str) -> None:
        """Write modules given as `core="source"`, or all default files."""
        given = {f"fakeup/{name}.py": text for name, text in files.items()} or FILES
        write_files(self.root, given)
        importlib.invalidate_caches()

    def version(self, text: str) -> None:
        """Set the version of the project."""
        (self.root / "fakeup/version.txt").write_text(text)

    def digest(self, site: str) -> str:
        """Return the digest of a site as it stands on disk now."""
        found = Tree(str(self.root)).digest(site)
        assert found, site
        return found

    def load(self, name: str = "fakeup.core") -> ModuleType:
        """Import a module."""
        return importlib.import_module(name)

    def patch(
        self,
        sites: dict[str, Any] | None = None,
        *parts: Any,
        name: str = "fakeup.scale",
        extra: tuple[Variant, ...] = (),
        **more: Any,
    ) -> Patch:
        """Return a patch that was tested on the sources as they stand on disk now. `parts`: of a variant."""
        sites = {"fakeup.core:scale": triple} if sites is None else sites
        parts = (*(replaced(site, make) for site, make in sites.items()), *parts)
        variants = (variant("1", *parts), *extra)
        patch = Patch(
            id=name,
            summary="Scale rightly",
            why="Because.",
            upstream=("fake/up#1",),
            targets=(Target(project=PROJECT, variants=variants), *more.pop("others", ())),
            **more,
        )
        tested(patch, Tree(str(self.root)))
        return patch


@contextlib.contextmanager
def past_the_hook() -> Iterator[None]:
    """Import without the finders of overlay, as a loader that asks nobody does."""
    finders = list(sys.meta_path)
    sys.meta_path[:] = [finder for finder in finders if not getattr(finder, "overlay_finder", False)]
    yield
    sys.meta_path[:] = finders


def forget(package: str = PACKAGE) -> None:
    """Forget every module of a package."""
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]
    importlib.invalidate_caches()


class MemoryTree(Tree):
    """A tree given as text: what the engine's own tests decide on."""

    def __init__(self, files: dict[str, str], metadata: dict[str, str] | None = None) -> None:
        super().__init__()
        self._files = files
        self._metadata = metadata or {}

    def source(self, module: str) -> str | None:
        path = module.replace(".", "/")
        for candidate in (f"{path}.py", f"{path}/__init__.py"):
            if candidate in self._files:
                return self._files[candidate]
        inside = any(name.startswith(f"{path}/") for name in self._files)
        return "" if inside else None

    def is_package(self, module: str) -> bool:
        return f"{module.replace('.', '/')}.py" not in self._files

    def read(self, path: str) -> str | None:
        return self._files.get(path)

    def metadata_version(self, project: Project) -> str | None:
        return next((self._metadata[name] for name in project.distributions if name in self._metadata), None)
