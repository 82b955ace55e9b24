"""Where the editable installs of a folder lead to, read and not run.

A site-packages holds links to sources elsewhere: lines of `.pth` files that are folders (also those of
`easy-install.pth`), and finders that a `.pth` file imports, as setuptools writes them. Such a finder is
parsed, and its `MAPPING` and `NAMESPACES` are taken.
"""

from __future__ import annotations

import ast
import os
from glob import escape, glob

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
        for site in filter(os.path.isdir, sites):
            for file in sorted(glob(os.path.join(escape(site), "*.pth"))):
                self._read_pth(site, file)

    def all(self) -> list[Link]:
        """Return the links that lead somewhere."""
        portions = [link for links in self.portions.values() for link in links]
        return [*self.folders, *self.modules.values(), *portions]

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
            for node in ast.parse(_text(file)).body:
                if not isinstance(node, (ast.Assign, ast.AnnAssign)):
                    continue
                names = node.targets if isinstance(node, ast.Assign) else [node.target]
                if node.value is not None and {"MAPPING", "NAMESPACES"} & {*map(ast.unparse, names)}:
                    self._take(site, file, dict(ast.literal_eval(node.value)))
        except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
            return  # a finder of some other kind

    def _take(self, site: str, file: str, found: dict[str, str | list[str]]) -> None:
        for module, places in found.items():
            if isinstance(places, str):
                link = self._link(file, module, places, site)
                if module_file(link.path):
                    self.modules.setdefault(module, link)
                else:
                    self.missing.append(link)
            else:
                links = [self._link(file, module, place, site) for place in places]
                self.portions.setdefault(module, []).extend(
                    link for link in links if os.path.isdir(link.path)
                )

    def _link(self, file: str, module: str, said: str, site: str) -> Link:
        below = os.path.isabs(said) and self._root
        path = os.path.join(self._root, said.lstrip("/")) if below else os.path.join(site, said)
        return Link(file=file, module=module, path=os.path.normpath(path), said=said)


def _text(file: str) -> str:
    return (read_file(file, None) or b"").decode("utf-8-sig", "replace")


def module_file(path: str) -> str:
    """Return the file of a module that a finder says to lie at a path, empty if there is none.

    It is `__init__.py` for a package.
    """
    places = (os.path.join(path, "__init__.py"), f"{path}.py", path)
    return next((place for place in places if os.path.isfile(place)), "")
