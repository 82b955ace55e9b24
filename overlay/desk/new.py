"""`overlay new`: the files of a patch that somebody is about to write, and of a pack that is to hold it."""

from __future__ import annotations

import ast
import os
import re
from importlib import import_module
from string import Template

from overlay.desk.lint import ID, UPSTREAM
from overlay.desk.output import EXIT_OK, folder, show
from overlay.errors import SelectionError
from overlay.model import settings
from overlay.model.record import TYPE_CHECKING, Record
from overlay.patch import Project
from overlay.source.registry import COMPAT, PACK
from overlay.source.shape import split_site

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from overlay.runtime.engine import Engine
    from overlay.source.source import Tree

_TEMPLATES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "templates")
_ADDRESS = re.compile(r"https://github\.com/([\w.-]+/[\w.-]+)/(pull|issues|commit)/([0-9a-f]+).*")
#: What stands for a site that nobody has named yet.
_UNKNOWN = "TODO.module:function"


class Wish(Record):
    """What somebody wants to write."""

    #: The patch's id, without its pack.
    id: str
    #: The pack that it is for; empty for overlay itself.
    pack: str = ""
    #: The functions that are to be replaced.
    sites: tuple[str, ...] = ()
    #: Where upstream discusses it: `owner/repo#number`, or its address on GitHub.
    upstream: str = ""


class Written(Record):
    """What `overlay new` wrote, by paths below the folder."""

    id: str
    files: tuple[str, ...]
    #: What to run next, a line each.
    todo: tuple[str, ...]


class _Home(Record):
    """Where patches lie in a checkout: that of overlay, or of a pack."""

    pack: str
    package: str
    path: str
    #: What the pack itself still lacks, by paths.
    files: dict[str, str] = {}  # noqa: RUF012 -- a record is never changed


def add(add_command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command to a parser."""
    new = add_command("new", _new, "write the files of a new patch, and of a new pack, for you to fill in")
    new.add_argument("id", metavar="PATCH-ID", help="project.what-is-mended")
    new.add_argument("sites", metavar="SITE", nargs="*", help="a function to replace (module:qualname)")
    what = "the pack to write into, created if it does not exist"
    new.add_argument("--pack", metavar="NAME", default="", help=what)
    new.add_argument("--upstream", metavar="REF", default="", help="owner/repo#number, or its address")
    what = "look for SITE in this folder (or wheel) only"
    new.add_argument("--site", type=folder, metavar="DIR", help=what)


def _new(_: Engine, arguments: argparse.Namespace) -> int:
    from overlay.source.source import InstalledTree

    wish = Wish(
        id=arguments.id, pack=arguments.pack, sites=tuple(arguments.sites), upstream=arguments.upstream
    )
    written = write(wish, os.getcwd(), InstalledTree(arguments.site))
    lines = [*written.files, "Fill in what says TODO, then run:", *(f"  {line}" for line in written.todo)]
    show(arguments, written.to_dict(), lambda: "\n".join(lines))
    return EXIT_OK


def write(wish: Wish, folder: str, tree: Tree) -> Written:
    """Write a patch with its contract, and in an empty folder the pack around it, into `folder`.

    The sites are looked up in `tree`. Nothing is installed, and nothing that is there is written over.

    Raises:
        SelectionError: A name is none, a site cannot be replaced, or a file is there already.
        SourceError: The source of a site cannot be read.

    """
    if not ID.fullmatch(wish.id) or "/" in wish.id:
        raise SelectionError(
            f"{wish.id!r} is no patch id: say project.words-with-hyphens, in small letters and digits"
        )
    upstream = _reference(wish.upstream)
    for site in wish.sites:
        _check(site, tree)
    home = _home(folder, wish.pack)
    project, _, name = wish.id.partition(".")
    place = f"{home.path}/{project}/{name.replace('-', '_')}"
    known, files = _project(project, home, wish.sites, folder)
    ident = f"{home.pack}/{wish.id}" if home.pack else wish.id
    words = {"id": ident, "import_project": known, "upstream": upstream or "TODO: owner/repo#number"}
    texts = {**home.files, **files, **_patch(place, wish.sites or (_UNKNOWN,), words)}
    there = [path for path in (f"{place}.py", *texts) if os.path.lexists(os.path.join(folder, path))]
    if there:
        raise SelectionError(f"{there[0]} exists already, so nothing was written")
    _put(folder, texts)
    return Written(id=ident, files=tuple(texts), todo=_todo(home, ident, project))


def _check(site: str, tree: Tree) -> None:
    """Raise `SelectionError` unless a function that can be replaced stands at a site."""
    module, qualname = split_site(site)
    if not qualname:
        raise SelectionError(f"{site!r} is no function: name one as module:qualname")
    package = module.partition(".")[0]
    for name in (package, module):
        if tree.source(name) is None and not tree.is_package(name):
            raise SelectionError(
                f"{site!r} is no function here: there is no {name}; install {package}, "
                "or say by --site where it lies"
            )
    if not tree.has(site):
        raise SelectionError(f"{site!r} is no function here: {module} defines no {qualname}")
    nodes = tree.nodes(tree.chain(site)[-1])
    plain = any(isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) for node in nodes)
    if wrong := tree.obstacle(site) or ("" if plain else f"{site} is no function that Python code defines"):
        raise SelectionError(wrong)


def _home(folder: str, pack: str) -> _Home:
    """Return where the patches of a checkout lie, or will lie."""
    if os.path.isfile(os.path.join(folder, "overlay", "source", "registry.py")):
        if pack:
            what = "--pack: this is the checkout of overlay itself; go to a folder for the pack"
            raise SelectionError(what)
        return _Home(pack="", package=PACK, path="patches")
    if not pack:
        raise SelectionError(f"{folder} is not a checkout of overlay: name your pack with --pack NAME")
    if not settings.is_pack_name(pack):
        raise SelectionError(f"{pack!r} is not the name of a pack: small letters, digits and hyphens")
    package = f"{pack.replace('-', '_')}_overlay"
    home = _Home(pack=pack, package=f"{package}.patches", path=f"{package}/patches")
    for place in (home.path, f"src/{home.path}"):
        if os.path.isdir(os.path.join(folder, place)):
            return home.replace(path=place)
    files = {
        "pyproject.toml": _fill("pack.txt", name=pack, package=package),
        f"{package}/__init__.py": f'"""Patches of {pack}."""\n',
        f"{home.path}/__init__.py": '"""A folder for each project, a folder in it for each patch."""\n',
    }
    return home.replace(files=files)


def _project(project: str, home: _Home, sites: tuple[str, ...], folder: str) -> tuple[str, dict[str, str]]:
    """Return how the project of a patch is imported, and the file that its folder still lacks."""
    known = {
        found.name.partition("-")[0]: constant
        for constant, found in vars(import_module(f"{COMPAT}.projects")).items()
        if isinstance(found, Project)
    }
    file = f"{home.path}/{project}/__init__.py"
    is_there = os.path.exists(os.path.join(folder, file))
    if project in known:
        files = {} if is_there else {file: f'"""Patches of {project}."""\n'}
        return f"from overlay.compat.projects import {known[project]} as PROJECT", files
    if not home.pack:
        them = ", ".join(sorted(known))
        raise SelectionError(f"there is no project {project!r}; there are {them}, and a pack may be for any")
    marker = split_site(sites[0])[0].partition(".")[0] if sites else project
    text = _fill("project.txt", project=project, marker=marker)
    return f"from {home.package}.{project} import PROJECT", {} if is_there else {file: text}


def _patch(place: str, sites: tuple[str, ...], words: dict[str, str]) -> dict[str, str]:
    """Return the texts of a patch's folder, by their paths."""
    names: list[str] = []
    for site in sites:
        parts = re.split(r"[.:]", site)
        choices = ("_".join(parts[-count:]).strip("_").lower() for count in range(1, len(parts) + 1))
        names.append(next(name for name in choices if name not in names))
    filled = {
        **words,
        "functions": "\n\n\n".join(_fill("function.txt", name=name).rstrip() for name in names),
        "replaced": "\n".join(map(_replaced, sites, names)),
    }
    return {
        f"{place}/__init__.py": _fill("patch.txt", **filled),
        f"{place}/contract.py": _fill("contract.txt", **words),
    }


def _replaced(site: str, name: str) -> str:
    """Return a replacement as a formatter would leave it."""
    indent = " " * 12
    line = f'{indent}replaced("{site}", make_{name}),'
    parts = (f"{indent}replaced(", f'{indent}    "{site}",', f"{indent}    make_{name},", f"{indent}),")
    return line if len(line) <= 110 else "\n".join(parts)  # noqa: PLR2004 -- columns


def _todo(home: _Home, ident: str, project: str) -> tuple[str, ...]:
    if not home.pack:
        return (f"./scripts/matrix tested {ident} --write --judged",)
    table = f"{home.path}/{project}/tested.json"
    install = "pip install --no-deps --no-build-isolation -e ."
    prove = f"OVERLAY_PACKS={home.pack} overlay prove {ident} --write {table} --judged"
    return (*((install,) if home.files else ()), prove)


def _reference(upstream: str) -> str:
    """Return where upstream discusses it as patches write it."""
    address = _ADDRESS.fullmatch(upstream)
    if address:
        upstream = f"{address[1]}{'@' if address[2] == 'commit' else '#'}{address[3]}"
    if upstream and not UPSTREAM.fullmatch(upstream):
        raise SelectionError(
            f"{upstream!r} is neither owner/repo#number nor owner/repo@commit nor an address on GitHub"
        )
    return upstream


def _fill(template: str, **words: str) -> str:
    with open(os.path.join(_TEMPLATES, template), encoding="utf-8") as file:
        return Template(file.read()).substitute(words)


def _put(folder: str, texts: dict[str, str]) -> None:
    """Write files that are not there. Raises `SelectionError`."""
    for path, text in texts.items():
        whole = os.path.join(folder, path)
        try:
            os.makedirs(os.path.dirname(whole), exist_ok=True)
            with open(whole, "x", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise SelectionError(f"{path} cannot be written: {error}") from error
