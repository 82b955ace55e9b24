"""Digests of the code that is overlay's and its patches' own, so that a lock and the ranks can compare it.

Files are read, not imported: a pack is compared with its lock before any of it runs.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

from overlay.catalogue.registry import COMPAT, PACK, module_of
from overlay.deciding.table import NAME as TESTED
from overlay.errors import OverlayError
from overlay.reading.locate import read_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

#: What Python imports, and what known sources are decided by. The cache of compiled files is left aside: it
#: says nothing that its source does not.
_ENDINGS = (".py", ".pyc", ".so", TESTED)
#: What the name of a file in a patch's folder begins with if it proves the patch.
PROOF = "contract"


def of_overlay() -> str:
    """Return the digest of all of overlay but the patches, the same for every kind of installation."""
    files = {}
    for package in ("overlay", COMPAT, PACK):
        below = package.removeprefix("overlay").strip(".")
        files.update({os.path.join(below, name): path for name, path in _files(package).items()})
    return _digest({name: path for name, path in files.items() if not _is_patch(name)})


def of_package(package: str) -> str:
    """Return the digest of all files of a package. Raises `OverlayError` if there is no such package."""
    files = _files(package)
    if not files:
        raise OverlayError(f"the package {package} cannot be found")
    return _digest(files)


def of_patch(patch: str) -> str:
    """Return the digest of what holds a patch which has been loaded, empty if no file does.

    What proves a patch, and is not run by it, is not counted: a lock says what runs.
    """
    module = sys.modules.get(module_of(patch))
    spec = getattr(module, "__spec__", None)
    if spec is not None and spec.submodule_search_locations is not None:
        files = _files(spec.name)
        return _digest({name: path for name, path in files.items() if not name.startswith(PROOF)})
    data = read_file(spec.origin, spec) if spec is not None and spec.origin else None
    if data is None:
        return ""
    from hashlib import sha256

    return sha256(data).hexdigest()


def of_code(patch: str) -> str:
    """Return the digest of what a patch does and of its contract: the code in its folder, without words.

    Its declaration, `PATCH = ...`, is left aside, and so are docstrings, comments, layout and in which of its
    files a thing stands. Empty if the patch was not loaded from a file.
    """
    if not module_of(patch):
        return ""
    import ast

    from overlay.reading.digest import digest

    module = import_module(module_of(patch))
    spec = module.__spec__
    folder = spec is not None and spec.submodule_search_locations is not None
    files = _files(module.__name__) if folder else {"": str(module.__file__)}
    statements: set[str] = set()
    for name in sorted(files):
        if files[name].endswith(".py"):
            with open(files[name], encoding="utf-8") as file:
                tree = ast.parse(file.read())
            for node in ast.walk(tree):
                if isinstance(body := getattr(node, "body", None), list):
                    body[:] = [one for one in body if not _is_wording(one, module.__name__)]
            statements |= {digest([node]) for node in tree.body}
    return digest(sorted(statements))


def _is_wording(node: object, package: str) -> bool:
    """Return whether a statement in a patch's module says nothing of what the patch does."""
    import ast

    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)  # a docstring
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").startswith((package, "__future__"))
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("PATCH", "TYPE_CHECKING")


def _is_patch(name: str) -> bool:
    """Return whether a file, by its path in the package, belongs to one patch and is not what patches share.

    `patches/PROJECT/NAME.py`, and all in the folder `patches/PROJECT/NAME/`.
    """
    first, *rest = name.split(os.sep)
    own = not any(part.startswith("_") or part == TESTED for part in rest[:2])
    return first == "patches" and len(rest) > 1 and own


def _files(package: str) -> dict[str, str]:
    """Return the files of a package by their paths in it. Of an archive there is one, the archive."""
    from overlay.reading.source import InstalledTree

    found: dict[str, str] = {}
    for folder in InstalledTree().folders(package):
        if not os.path.isdir(folder):
            archive = folder
            while not os.path.exists(archive) and os.path.dirname(archive) != archive:
                archive = os.path.dirname(archive)
            found[os.path.basename(archive)] = archive
            continue
        for name, path in _below(folder):
            found.setdefault(name, path)
    return found


def _below(folder: str, inside: str = "") -> Iterator[tuple[str, str]]:
    """Yield the files of code below a folder, by their paths in it. `os.walk` takes twice as long."""
    try:
        entries = [*os.scandir(folder)]
    except OSError:
        return
    for entry in entries:
        if entry.is_dir():
            if entry.name != "__pycache__" and not entry.is_symlink():
                yield from _below(entry.path, f"{inside}{entry.name}{os.sep}")
        elif entry.name.endswith(_ENDINGS):
            yield f"{inside}{entry.name}", entry.path


def _digest(files: dict[str, str]) -> str:
    from hashlib import sha256

    total = sha256()
    for name in sorted(files):
        with open(files[name], "rb") as file:
            inside = sha256(file.read()).hexdigest()
        total.update(f"{name.replace(os.sep, '/')}\0{inside}\0".encode())
    return total.hexdigest()
