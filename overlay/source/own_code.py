"""The files of overlay's own code, of its patches and of packs, and the digests of them.

Locks and ranks compare these. Files are read, not imported: a pack is compared with its lock before any of it
runs. Rows of the table have the digest of one patch, which leaves out its words.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from hashlib import sha256
from importlib import import_module

from overlay.errors import OverlayError
from overlay.source.digest import digest
from overlay.source.source import Tree
from overlay.source.table import TABLE_FILE

#: Endings of what Python imports or a patch compiles, and the table of tested sources. `__pycache__` does not
#: count: it says nothing that its source does not.
_ENDINGS = (
    ".py", ".pyc", ".pyx", ".so", ".c", ".cc", ".cpp", ".h", ".hpp", ".cu", ".cuh", ".ptx", ".cubin",
    TABLE_FILE,
)  # fmt: skip


def of_pack(package: str) -> str:
    """Return the digest of all code beside the package of a pack's patches: they may import any of it.

    `acme_overlay.patches` lies in `acme_overlay`. Raises `OverlayError` if there is no such package.
    """
    if not files(package):
        raise OverlayError(f"the package {package} cannot be found")
    return of_files(files(package.rpartition(".")[0] or package))


def of_files(found: dict[str, str]) -> str:
    """Return the digest of the names and contents of files."""
    total = sha256()
    for name in sorted(found):
        with open(found[name], "rb") as file:
            inside = sha256(file.read()).hexdigest()
        total.update(f"{name.replace(os.sep, '/')}\0{inside}\0".encode())
    return total.hexdigest()


def of_module(name: str) -> str:
    """Return the digest of what a patch does and of its contract: the code in its folder, without words.

    It leaves out the declaration, `PATCH = ...`, docstrings, comments, layout, and which of the files has
    what.
    """
    module = import_module(name)
    spec = module.__spec__
    folder = spec is not None and spec.submodule_search_locations is not None
    inside = files(module.__name__) if folder else {"": str(module.__file__)}
    statements: set[str] = set()
    for file_name in sorted(inside):
        if inside[file_name].endswith(".py"):
            with open(inside[file_name], encoding="utf-8") as file:
                tree = ast.parse(file.read())
            for node in ast.walk(tree):
                if isinstance(body := getattr(node, "body", None), list):
                    body[:] = [one for one in body if not _is_wording(one, module.__name__)]
            statements |= {digest([node]) for node in tree.body}
    return digest(sorted(statements))


def _is_wording(node: object, package: str) -> bool:
    """Return whether a statement in a patch's module has no effect on what the patch does."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)  # a docstring
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").startswith((package, "__future__"))
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("PATCH", "TYPE_CHECKING")


def files(package: str) -> dict[str, str]:
    """Return the files of a package by their paths in it."""
    found: dict[str, str] = {}
    for folder in Tree().folders(package):
        for name, path in _below(folder):
            found.setdefault(name, path)
    return found


def _below(folder: str, inside: str = "", above: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Yield the files of code below a folder, by their paths in it. `os.walk` takes twice as long.

    Links are followed, as an import does, but not to a folder that they lie in.
    """
    above = above or (os.path.realpath(folder),)
    try:
        entries = [*os.scandir(folder)]
    except OSError:
        return
    for entry in entries:
        if entry.is_dir():
            if entry.name == "__pycache__":
                continue
            linked = entry.is_symlink()
            real = os.path.realpath(entry.path) if linked else os.path.join(above[-1], entry.name)
            if real not in above:
                yield from _below(entry.path, f"{inside}{entry.name}{os.sep}", (*above, real))
        elif entry.name.endswith(_ENDINGS) and entry.is_file():  # not a dangling link, as editors leave them
            yield f"{inside}{entry.name}", entry.path
