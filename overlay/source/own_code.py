"""The files of overlay's own code, of its patches and of packs, and the digests of them.

Locks and ranks compare these. Files are read, not imported: a pack is compared with its lock before any of it
runs. Rows of the table have the digest of one patch, with what it shares with others, and without words.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from importlib.util import resolve_name

from overlay.errors import OverlayError
from overlay.source.digest import digest
from overlay.source.source import Tree
from overlay.source.table import TABLE_FILE
from overlay.source.unwarned import parse

#: Endings of what Python imports or a patch compiles, and the table of tested sources. `__pycache__` does not
#: count: it says nothing that its source does not.
_ENDINGS = (
    ".py", ".pyc", ".pyx", ".so", ".c", ".cc", ".cpp", ".h", ".hpp", ".cu", ".cuh", ".ptx", ".cubin",
    TABLE_FILE,
)  # fmt: skip
#: What a patch says to people, and of its selection.
_WORDS = frozenset(
    {"id", "summary", "why", "upstream", "companion", "without", "changes", "met", "opt_in", "evidence"}
)


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


def of_module(name: str, tree: Tree | None = None) -> str:
    """Return the digest of what a patch does and of its contract, without words.

    That is the code in its folder, and what it imports of its pack, with the packages above; for one of ours,
    what it imports of `overlay.patches`.
    Docstrings, comments, layout and the words of a declaration do not count.
    """
    tree = tree or Tree()
    pack = name.partition(".")[0]
    if ours := pack == __name__.partition(".")[0]:
        pack = name.rsplit(".", 2)[0]
    inside = files(name, tree) if tree.is_package(name) else {}
    waiting = [(name, tree.file(name))]
    waiting += [(f"{name}.{file[:-3].replace(os.sep, '.')}", path) for file, path in inside.items()]
    found: dict[str, str] = {}
    while waiting:
        module, path = waiting.pop()
        if path in found or not path or path.endswith(TABLE_FILE):
            continue
        module = module.removesuffix(".__init__")
        with open(path, "rb") as opened:
            text = opened.read()
        if not path.endswith(".py"):
            found[path] = f"{module} {sha256(text).hexdigest()}"
            continue
        code = parse(text, path)
        _leave_out_words(code)
        found[path] = f"{module} {digest([code])}"
        package = module if os.path.basename(path) == "__init__.py" else module.rpartition(".")[0]
        names = {one for node in ast.walk(code) for one in _imported(node, package)}
        names |= set() if ours else {module.rpartition(".")[0]}
        waiting += [(one, tree.file(one)) for one in names if f"{one}.".startswith(f"{pack}.")]
    return digest(sorted({*found.values()}))


def _leave_out_words(code: ast.Module) -> None:
    """Take out of a module what has no effect on what it does."""
    for node in ast.walk(code):
        if isinstance(body := getattr(node, "body", None), list):
            body[:] = [one for one in body if not _is_wording(one)]
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Patch":
            node.keywords = [one for one in node.keywords if one.arg not in _WORDS]


def _is_wording(node: object) -> bool:
    """Return whether a statement has no effect on what a module does."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)  # a docstring
    if isinstance(node, ast.If):
        return getattr(node.test, "id", "") == "TYPE_CHECKING" and not node.orelse
    if isinstance(node, ast.Assign):
        return getattr(node.targets[0], "id", "") == "TYPE_CHECKING"
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _imported(node: ast.AST, package: str) -> Iterator[str]:
    """Yield what a statement imports, where it lies in a package: modules, and what may be one."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            parts = alias.name.split(".")
            yield from (".".join(parts[:number]) for number in range(1, len(parts) + 1))
    elif isinstance(node, ast.ImportFrom):
        with suppress(ImportError):  # beyond the pack, which fails where it runs
            base = resolve_name("." * node.level + (node.module or ""), package)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def files(package: str, tree: Tree | None = None) -> dict[str, str]:
    """Return the files of a package by their paths in it."""
    found: dict[str, str] = {}
    for folder in (tree or Tree()).folders(package):
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
