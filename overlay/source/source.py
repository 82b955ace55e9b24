"""Finding the source of upstream modules without importing anything.

`importlib.util.find_spec("a.b")` imports `a`, which for Megatron means torch, so parents are walked by
their specs instead. The same walk serves a running interpreter (its `sys.meta_path`, so editable installs
are seen) and a folder such as an unpacked wheel, a site-packages or a checkout.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from glob import escape, glob
from hashlib import sha256
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.metadata import Distribution, distributions
from importlib.util import decode_source, resolve_name
from types import CodeType
from typing import Any, TypeVar

from overlay.errors import SourceError
from overlay.patch import Project
from overlay.source import shape
from overlay.source.shape import Module, bindings, split_site
from overlay.source.unwarned import parse, unwarned

T = TypeVar("T")
#: A folder or an archive.
Place = str | os.PathLike[str]


class Tree:
    """The upstream source that decisions are made from: read on demand, parsed once.

    It is what the running interpreter imports, or what it would import from folders or archives alone.
    Answers are kept: many patches and rows ask the same of a site.
    """

    def __init__(self, site: Place | Sequence[Place] | None = None) -> None:
        one_place = isinstance(site, (str, bytes, os.PathLike)) or not isinstance(site, Iterable)
        listed: Any = () if site is None else [site] if one_place else site
        given = [os.fspath(one) if isinstance(one, os.PathLike) else one for one in listed]
        for one in given:
            if not importable(one):
                raise SourceError(f"{one!r} is neither a folder nor an archive that Python can import from")
        if site is not None and not given:
            raise SourceError("no folder is given to look in")
        self.sites = None if site is None else list(map(os.path.abspath, given))
        #: What was given, as a plan names it.
        self.name = os.pathsep.join(given)
        self._specs: dict[str, ModuleSpec | None] = {}
        #: Modules as they were parsed, or why they cannot be.
        self._modules: dict[str, Module | str] = {}
        self._compiled: dict[str, list[CodeType]] = {}
        #: Answers, by the question.
        self._kept: dict[tuple[object, ...], Any] = {}
        #: What is known of sites without parsing: where each is imported from, empty if it is defined there.
        self.imported: dict[str, str] = {}
        #: The version of each project: in its own files, and in its metadata.
        self.versions: dict[Project, tuple[str | None, str | None]] = {}

    def options(self) -> str:
        """Return the options by which a command looks in these folders, empty for those of this Python."""
        from shlex import quote

        return "".join(f" --site {quote(site)}" for site in self.sites or ())

    def presence(self, site: str) -> bool | str:
        """Return whether a module (`a.b`) or a name in it (`a.b:C.f`) exists, or why that cannot be told.

        Raises `SourceError`.
        """
        module, qualname = split_site(site)
        return self._answer(site, shape.presence) if qualname else self._text(module) is not None

    def has(self, site: str) -> bool:
        """Return whether a module, or a name in it, exists for sure. Raises `SourceError`."""
        return self.presence(site) is True

    def digest(self, site: str) -> str | None:
        """Return the digest of a site's source, `None` if there is no such site. Raises `SourceError`."""
        return self._answer(site, shape.site_digest) if self.has(split_site(site)[0]) else None

    def obstacle(self, site: str) -> str:
        """Return why no function can take the place of a site, empty if one can. Raises `SourceError`."""
        members = split_site(site)[1].split(".")[1:]
        if any(name.startswith("__") and not name.endswith("__") for name in members):
            return f"{site} has a private name, which Python stores under another one"
        found = self._answer(self.chain(site)[-1], shape.obstacle)
        return f"{site} {found}" if found else ""

    def calls(self, site: str, callee: str, *, last: bool) -> bool:
        """Return whether a function always calls another, with `last` at its end. Raises `SourceError`."""
        return self._answer(site, shape.calls, callee, last)

    def _answer(self, site: str, question: Callable[..., T], *more: object) -> T:
        """Return the answer to a question about a site. Raises `SourceError`."""
        module, name = split_site(site)

        def ask() -> T:
            try:
                return question(self._parsed(module), name, *more)
            except RecursionError as error:
                raise SourceError(f"the source of {module} is nested too deep") from error

        return self._once(ask, question, site, *more)

    def _once(self, find: Callable[[], T], *key: object) -> T:
        """Return what `find` returned the first time for this key."""
        if key not in self._kept:
            self._kept[key] = find()
        found: T = self._kept[key]
        return found

    def nodes(self, site: str) -> list[ast.AST]:
        """Return the syntax nodes that bind a site, none if there is no such site. Raises `SourceError`."""
        module, qualname = split_site(site)
        if not self.has(module):
            return []
        parsed = self._parsed(module)
        return [item.node for item in bindings(parsed, qualname)] if qualname else [parsed.tree]

    def code(self, site: str) -> list[CodeType]:
        """Return the code that the source of a site compiles to, without its location.

        There are several if the source defines the site several times. Raises `SourceError`.
        """
        module, qualname = split_site(site)
        found = self._code(module)
        for name in qualname.split("."):
            parts = _inside(found)
            # Python 3.12 puts what has parameters of types into code of its own.
            parts += _inside(one for one in parts if one.co_name == f"<generic parameters of {name}>")
            found = [one for one in parts if one.co_name == name]
        return [bare(one) for one in found]

    def _code(self, module: str) -> list[CodeType]:
        """Return the code of a whole module: what it imports decides how its calls are compiled."""
        # Compile the very text that was decided on. A loader's `get_code` takes a twentieth of the time, but
        # returns the compiled file that Python runs: a live function would be compared with itself.
        if module not in self._compiled:
            text = self._text(module)
            try:
                with unwarned(f"<{module}>"):
                    code = [] if text is None else [compile(text, f"<{module}>", "exec", dont_inherit=True)]
            except Exception as error:  # MemoryError, RecursionError and SystemError are among the answers
                raise SourceError(_wrong(module, "does not compile", error)) from error
            self._compiled[module] = code
        return self._compiled[module]

    def chain(self, site: str) -> list[str]:
        """Return a site and, while it is a `from` import, the site that it is imported from.

        Raises `SourceError`.
        """
        return self._once(lambda: self._chain_of(site), "chain", site)

    def _chain_of(self, site: str) -> list[str]:
        chain = [site]
        while chain[-1]:
            found = self._imported_from(chain[-1])
            chain.append("" if found in chain else found)  # two modules may import it from each other
        return chain[:-1]

    def _imported_from(self, site: str) -> str:
        """Return the site that a name is imported from, empty if it is not. Raises `SourceError`."""
        if site not in self.imported:
            module, name = split_site(site)
            text = self._text(module)
            defined = rf"^(async )?(def|class) {name.partition('.')[0]}\b"
            # A name that the module defines is not imported: to see that, nothing need be parsed.
            here = not text or not name or re.search(defined, text, re.MULTILINE)
            found = None if here else self._answer(site, shape.imported)
            self.imported[site] = ""
            if found is not None:
                level, base, name = found
                package = module if self.is_package(module) else module.rpartition(".")[0]
                self.imported[site] = f"{resolve_name('.' * level + base, package)}:{name}"
        return self.imported[site]

    def _text(self, module: str) -> str | None:
        """Return the source of a module as it was when it was first asked for. Raises `SourceError`."""
        return self._once(lambda: self.source(module), "text", module)

    def text_digest(self, module: str) -> str:
        """Return the digest of a whole source, `none` if there is no such module. Raises `SourceError`."""
        text = self._text(module)
        if text is None:
            return "none"
        return self._once(
            lambda: sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32], "digest", module
        )

    def let_go(self) -> None:
        """Drop what was parsed and compiled, a hundred times the size of the source. Keep the source."""
        self._modules = {name: found for name, found in self._modules.items() if isinstance(found, str)}
        self._compiled.clear()

    def _parsed(self, module: str) -> Module:
        """Return a parsed module, an empty one if there is none. Raises `SourceError`."""
        if module not in self._modules:
            text = self._text(module) or ""
            try:
                self._modules[module] = Module(parse(text, f"<{module}>"))
            except Exception as error:  # noqa: BLE001 -- MemoryError and SystemError are among the answers
                # Keep the error: every site asks for it, and to find it can take seconds.
                self._modules[module] = _wrong(module, "does not parse", error)
        found = self._modules[module]
        if isinstance(found, str):
            raise SourceError(found)
        return found

    def source(self, module: str) -> str | None:
        """Return the source of a module; that of a namespace package is empty. Raises `SourceError`."""
        spec = self._spec(module)
        if spec is None:
            return None
        if spec.loader is None:
            return ""  # a namespace package: exists, and has no source
        if spec.has_location and is_endless(spec.origin or ""):
            raise SourceError(f"{spec.origin} is no file of at most {LARGEST} bytes")
        get_source = getattr(spec.loader, "get_source", None)
        is_file = spec.has_location and (spec.origin or "").endswith(".py")
        try:
            text: str | None = None
            if get_source is not None:
                text = get_source(module)
            elif is_file and (data := read_file(spec.origin or "", spec)) is not None:
                text = decode_source(data)  # as under pytest, which writes assertions anew
        except Exception as error:  # whatever a loader of someone else's raises
            raise SourceError(_wrong(module, "cannot be read", error)) from error
        if text is None:
            raise SourceError(f"{module} is installed without its source ({spec.origin})")
        return text

    def is_package(self, module: str) -> bool:
        """Return whether a module is a package, also one without a file."""
        spec = self._spec(module)
        return spec is not None and spec.submodule_search_locations is not None

    def read(self, path: str) -> str | None:
        """Return a file beside or below the packages, also one inside an archive, or `None`."""
        folder, _, name = path.rpartition("/")
        while folder.endswith("/.."):
            folder, name = folder[:-3], f"../{name}"
        package = folder.replace("/", ".")
        spec = self._spec(package)
        for location in self.folders(package):
            data = read_file(os.path.join(location, name), spec)
            if data is not None:
                return data.decode("utf-8", "replace")
        return None

    def file(self, module: str) -> str:
        """Return where a module lies, empty if there is none or it has no file. It is not imported."""
        spec = self._spec(module)
        return (spec.origin or "") if spec is not None else ""

    def remarks(self, markers: Iterable[str]) -> list[str]:
        """Return a sentence for each `.pth` file that leads to a project missing from these folders."""
        absent = {marker.partition(".")[0] for marker in markers if self._spec(marker) is None}
        said = []
        for file in [file for site in self.sites or () for file in sorted(glob(f"{escape(site)}/*.pth"))]:
            text = f"{os.path.basename(file)} {(read_file(file, None) or b'').decode('utf-8', 'replace')}"
            names = sorted(name for name in absent if name in text.lower())
            said += [
                f"{name} is not here, and {file} leads elsewhere: name the folder that {name} lies in too"
                for name in names
            ]
        return said

    def metadata_version(self, project: Project) -> str | None:
        """Return the version that the first distribution of a project's names states, or `None`."""
        # Python imports from no other entries, and the library cannot take them.
        entries: list[Any] = sys.path
        where = self.sites if self.sites is not None else [one for one in entries if isinstance(one, str)]
        for name in project.distributions:
            for found in distributions(name=name, path=where):
                version = stated_version(found)
                if version:
                    return version
        return None

    def _spec(self, module: str) -> ModuleSpec | None:
        if module not in self._specs:
            self._specs[module] = self._find(module)
        return self._specs[module]

    def _find(self, module: str) -> ModuleSpec | None:
        parent = module.rpartition(".")[0]
        if self.sites is not None:
            return ask_path(module, self.folders(parent) if parent else self.sites)
        # An imported module is what runs, wherever a finder would look now.
        with suppress(AttributeError):  # a lazy module would be executed if it was asked
            spec: ModuleSpec | None = object.__getattribute__(sys.modules.get(module), "__dict__").get(
                "__spec__"
            )
            if spec is not None:
                return spec
        if not parent:
            return ask_finders(module, None, sys.meta_path)
        locations = self.folders(parent)
        if not locations:
            return None
        # Python asks a finder below a package once that is imported, so others than its own may import it.
        is_folder = isinstance(getattr(self._spec(parent), "loader", None), SourceFileLoader)
        asked: list[Any] = [PathFinder] if is_folder and parent not in sys.modules else sys.meta_path
        return ask_finders(module, locations, asked) or ask_path(module, locations)

    def folders(self, package: str) -> list[str]:
        """Return where the submodules of a package lie, nothing if there is none. It is not imported."""
        live = sys.modules.get(package) if self.sites is None else None
        # A package that has been imported may have added to its path, as `pkgutil.extend_path` does.
        found = [*portions(getattr(live, "__path__", None))]
        spec = self._spec(package)
        found += [] if spec is None else portions(spec.submodule_search_locations)
        return list(dict.fromkeys(found))


def _inside(codes: Iterable[CodeType]) -> list[CodeType]:
    return [part for code in codes for part in code.co_consts if isinstance(part, CodeType)]


def _wrong(module: str, what: str, error: Exception) -> str:
    return f"the source of {module} {what}: {str(error) or type(error).__name__}"


def bare(code: CodeType) -> CodeType:
    """Return code without its location. Python compares all the rest, and tells -0.0 from 0.0."""
    inside = tuple(bare(one) if isinstance(one, CodeType) else one for one in code.co_consts)
    return code.replace(co_filename="", co_firstlineno=1, co_linetable=b"", co_consts=inside)


#: The most bytes of a source or a version file: many times the largest module that a patch knows. A parser
#: takes a hundred times as much memory.
LARGEST = 1 << 21


def is_endless(path: str) -> bool:
    """Return whether reading a path could take for ever: a pipe, a device, a huge file."""
    return os.path.exists(path) and (not os.path.isfile(path) or os.path.getsize(path) > LARGEST)


def importable(site: object) -> bool:
    """Return whether this is the path of a folder or an archive that modules can be imported from."""
    return isinstance(site, str) and site != "" and "\0" not in site and _entry_finder(site) is not None


def stated_version(found: Distribution) -> str | None:
    """Return the version in the metadata of a distribution, `None` if an interrupted installer left none."""
    folder = getattr(found, "_path", None)  # look at it first: the library opens whatever lies there
    if isinstance(folder, os.PathLike):
        folder = os.fspath(folder)
        inside = [os.path.join(folder, name) for name in ("METADATA", "PKG-INFO")]
        if any(map(is_endless, inside if os.path.isdir(folder) else [folder])):
            return None
    try:
        return found.metadata["Version"]
    except Exception:  # noqa: BLE001 -- each release of the library raises another one for missing metadata
        return None


def ask_finders(module: str, path: Sequence[str] | None, finders: Iterable[Any]) -> ModuleSpec | None:
    """Return the spec from the first finder that has one, overlay's own left out; `None` if there is none."""
    for finder in list(finders):
        find_spec = getattr(finder, "find_spec", None)
        if find_spec is None or getattr(finder, "overlay_finder", False):
            continue
        try:
            spec: ModuleSpec | None = find_spec(module, path)
        except Exception:  # noqa: BLE001, S112 -- a finder of someone else's that needs the parent imported
            continue
        if spec is not None:
            return spec
    return None


def ask_path(module: str, path: Sequence[str]) -> ModuleSpec | None:
    """Return the spec from folders and archives alone, with the portions of a namespace package joined."""
    found: list[str] = []
    for entry in path:
        finder = _entry_finder(entry)
        spec: ModuleSpec | None = finder.find_spec(module) if finder is not None else None
        if spec is None:
            continue
        if spec.loader is not None:
            return spec
        found += spec.submodule_search_locations or []
    if not found:
        return None
    spec = ModuleSpec(module, None, is_package=True)
    spec.submodule_search_locations = found
    return spec


def _entry_finder(entry: str) -> Any:
    """Return a fresh finder for one folder or archive: the interpreter's own ones cache what they list."""
    for hook in sys.path_hooks:
        with suppress(ImportError):  # that is how a path hook says no
            return hook(entry)
    return None


def portions(path: Any) -> list[str]:
    """Return the folders and archives of a package's path, none for what is no package."""
    # A namespace path recomputes itself through `sys.modules` when it is iterated; what it holds is enough.
    return list(getattr(path, "_path", None) or path or ())


def read_file(path: str, spec: ModuleSpec | None) -> bytes | None:
    """Return a file, also one inside an archive, `None` if there is none, or a huge one."""
    if is_endless(path):
        return None
    with suppress(OSError), open(path, "rb") as file:
        return file.read()
    get_data = getattr(spec and spec.loader, "get_data", lambda _: None)
    with suppress(OSError):
        data: bytes | None = get_data(path)
        return data
    return None
