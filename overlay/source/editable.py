"""Where the editable installs of a folder lead to, read and not run.

A site-packages holds links to sources elsewhere: lines of `.pth` files that are folders (also those of
`easy-install.pth`), and finders that a `.pth` file imports, as setuptools (a `MAPPING` and `NAMESPACES`) and
the package `editables` (`map_module`) write them. Such a finder is parsed, and its literals are taken.
"""

from __future__ import annotations

import ast
import os

from overlay.model.record import Record
from overlay.source.locate import read_file


class Link(Record):
    """One place that a site-packages leads to."""

    #: The file that says so.
    file: str
    #: The top-level package or module that lies there; empty if the place is a folder of the path.
    module: str
    #: Where that is, on this machine.
    path: str
    #: What the file says.
    said: str


class Links:
    """The links of some folders: what they lead to, and what is not there.

    Args:
        sites: The folders, as Python would have them on its path.
        root: The folder that is `/` to them; absolute paths in them are looked for below it.
    """

    def __init__(self, sites: list[str], root: str = "") -> None:
        self._root = root
        #: Folders that come onto the path, after the sites.
        self.folders: list[Link] = []
        #: Packages and modules that finders know.
        self.modules: dict[str, Link] = {}
        #: Portions of namespace packages that finders know.
        self.portions: dict[str, list[Link]] = {}
        self.missing: list[Link] = []
        #: Where sources of editable distributions lie, whether or not anything leads there.
        self.told: list[Link] = []
        for site in filter(os.path.isdir, sites):
            for name in _names(site):
                file = os.path.join(site, name)
                if name.endswith(".pth"):
                    self._read_pth(site, file)
                elif name.endswith(".egg-link"):
                    lines = _text(file).splitlines()[:1]
                    self.told += [self._link(file, name[: -len(".egg-link")], line, site) for line in lines]
                elif name.endswith(".dist-info"):
                    self._read_origin(site, file)

    def all(self) -> list[Link]:
        """Return the links that lead somewhere."""
        return [
            *self.folders,
            *self.modules.values(),
            *(one for many in self.portions.values() for one in many),
        ]

    def unfollowed(self) -> list[Link]:
        """Return the editable distributions to whose sources none of the links leads."""
        reached = [link.path for link in (*self.all(), *self.missing)]
        return [link for link in self.told if not any(_is_in(path, link.path) for path in reached)]

    def _read_pth(self, site: str, file: str) -> None:
        for line in map(str.strip, _text(file).splitlines()):
            if line.startswith(("import ", "import\t")):
                name = line[len("import") :].replace(";", " ").replace(",", " ").split()[0]
                if name.isidentifier():
                    self._read_finder(site, os.path.join(site, f"{name}.py"))
            elif line and not line.startswith("#"):
                link = self._link(file, "", line, site)
                (self.folders if os.path.exists(link.path) else self.missing).append(link)

    def _read_finder(self, site: str, file: str) -> None:
        try:
            nodes = list(ast.walk(ast.parse(_text(file))))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return
        for node in nodes:
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                names = node.targets if isinstance(node, ast.Assign) else [node.target]
                for name in names:
                    if isinstance(name, ast.Name) and name.id in ("MAPPING", "NAMESPACES"):
                        self._take(site, file, _literal(node.value))
            elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "map_module":
                module, path, *_ = [*map(_literal, node.args), None, None]
                self._take(site, file, {module: path} if isinstance(module, str) else None)

    def _take(self, site: str, file: str, found: object) -> None:
        for module, places in found.items() if isinstance(found, dict) else ():
            if isinstance(module, str) and isinstance(places, str):
                link = self._link(file, module, places, site)
                if module_file(link.path):
                    self.modules.setdefault(module, link)
                else:
                    self.missing.append(link)
            elif isinstance(module, str) and isinstance(places, list):
                links = [self._link(file, module, place, site) for place in places if isinstance(place, str)]
                self.portions.setdefault(module, []).extend(
                    link for link in links if os.path.isdir(link.path)
                )

    def _read_origin(self, site: str, folder: str) -> None:
        import json
        from urllib.parse import unquote, urlsplit

        try:
            said = json.loads(_text(os.path.join(folder, "direct_url.json")) or "{}")
            url = urlsplit(said["url"]) if said["dir_info"]["editable"] is True else None
        except (ValueError, KeyError, TypeError):
            return
        if url is not None and url.scheme == "file":
            name = os.path.basename(folder).partition("-")[0]
            self.told.append(self._link(folder, name, unquote(url.path), site))

    def _link(self, file: str, module: str, said: str, site: str) -> Link:
        below = os.path.isabs(said) and self._root
        path = os.path.join(self._root, said.lstrip("/")) if below else os.path.join(site, said)
        return Link(file=file, module=module, path=os.path.normpath(path), said=said)


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:  # that nothing in it can be found is said elsewhere
        return []


def _text(file: str) -> str:
    return (read_file(file, None) or b"").decode("utf-8-sig", "replace")


def _literal(node: ast.expr) -> object:
    try:
        found: object = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    return found


def module_file(path: str) -> str:
    """Return the file of a module that a finder says to lie at a path, empty if there is none.

    It is `__init__.py` for a package.
    """
    places = (os.path.join(path, "__init__.py"), f"{path}.py", path)
    return next((place for place in places if os.path.isfile(place)), "")


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)
