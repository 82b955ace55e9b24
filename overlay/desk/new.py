"""`overlay new`: the files of a patch that somebody is about to write, and of a pack that is to hold it."""

from __future__ import annotations

import ast
import os
from importlib import import_module
from string import Template

from overlay.desk.lint import ID
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
#: What stands for a site that nobody has named yet.
_UNKNOWN = "TODO.module:function"


class Written(Record):
    """What `overlay new` wrote, by paths below the folder."""

    id: str
    files: tuple[str, ...]
    #: What to run next, a line each.
    todo: tuple[str, ...]


def add(add_command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command to a parser."""
    new = add_command("new", _new, "write the files of a new patch, and of a new pack, for you to fill in")
    new.add_argument("id", metavar="PATCH-ID", help="project.what-it-fixes")
    new.add_argument("function", metavar="SITE", nargs="?", help="the function to replace (module:qualname)")
    what = "the pack to write into, created if it does not exist"
    new.add_argument("--pack", metavar="NAME", default="", help=what)
    what = "look for SITE in this folder (or wheel) only"
    new.add_argument("--site", type=folder, metavar="DIR", help=what)


def _new(_: Engine, arguments: argparse.Namespace) -> int:
    from overlay.source.source import InstalledTree

    tree = InstalledTree(arguments.site)
    written = write(arguments.id, arguments.function or "", os.getcwd(), tree, pack=arguments.pack)
    lines = [*written.files, "Fill in what says TODO, then run:", *(f"  {line}" for line in written.todo)]
    show(arguments, written.to_dict(), lambda: "\n".join(lines))
    return EXIT_OK


def write(name: str, site: str, folder: str, tree: Tree, *, pack: str = "") -> Written:
    """Write a patch with its contract, and in an empty folder the pack around it, into `folder`.

    The site, if one is given, is looked up in `tree`. Nothing is installed, and nothing that is there is
    written over.

    Raises:
        SelectionError: A name is none, a site cannot be replaced, or a file is there already.
        SourceError: The source of a site cannot be read.

    """
    if not ID.fullmatch(name) or "/" in name:
        raise SelectionError(
            f"{name!r} is no patch id: say project.words-with-hyphens, in small letters and digits"
        )
    if site:
        _check(site, tree)
    package, path, files = _home(folder, pack)
    project, _, short = name.partition(".")
    place, project_file = f"{path}/{project}/{short.replace('-', '_')}", f"{path}/{project}/__init__.py"
    imported, text = _project(project, package, site, pack)
    if not os.path.exists(os.path.join(folder, project_file)):
        files[project_file] = text
    ident = f"{pack}/{name}" if pack else name
    site = site or _UNKNOWN
    files[f"{place}/__init__.py"] = _fill(
        "patch.txt",
        id=ident,
        import_project=imported,
        site=site,
        name=site.replace(":", ".").rpartition(".")[2].strip("_").lower(),
    )
    files[f"{place}/contract.py"] = _fill("contract.txt", id=ident)
    there = [file for file in (f"{place}.py", *files) if os.path.lexists(os.path.join(folder, file))]
    if there:
        raise SelectionError(f"{there[0]} exists already, so nothing was written")
    todo = [f"./scripts/matrix tested {ident} --write --judged"]
    if pack:
        todo = ["pip install --no-deps --no-build-isolation -e ."] if "pyproject.toml" in files else []
        table = f"{path}/{project}/tested.json"
        todo.append(f"OVERLAY_PACKS={pack} overlay prove {ident} --write {table} --judged")
    _put(folder, files)
    return Written(id=ident, files=tuple(files), todo=tuple(todo))


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


def _home(folder: str, pack: str) -> tuple[str, str, dict[str, str]]:
    """Return the package of the patches in a checkout, its path, and the files that a pack still lacks."""
    if os.path.isfile(os.path.join(folder, "overlay", "source", "registry.py")):
        if pack:
            what = "--pack: this is the checkout of overlay itself; go to a folder for the pack"
            raise SelectionError(what)
        return PACK, "patches", {}
    if not pack:
        raise SelectionError(f"{folder} is not a checkout of overlay: name your pack with --pack NAME")
    if not settings.is_pack_name(pack):
        raise SelectionError(f"{pack!r} is not the name of a pack: small letters, digits and hyphens")
    package = f"{pack.replace('-', '_')}_overlay"
    path = f"{package}/patches"
    for place in (path, f"src/{path}"):
        if os.path.isdir(os.path.join(folder, place)):
            return f"{package}.patches", place, {}
    files = {
        "pyproject.toml": _fill("pack.txt", name=pack, package=package),
        f"{package}/__init__.py": f'"""Patches of {pack}."""\n',
        f"{path}/__init__.py": '"""A folder for each project, a folder in it for each patch."""\n',
    }
    return f"{package}.patches", path, files


def _project(project: str, package: str, site: str, pack: str) -> tuple[str, str]:
    """Return how the project of a patch is imported, and the text of the file of its folder."""
    known = {
        found.name.partition("-")[0]: constant
        for constant, found in vars(import_module(f"{COMPAT}.projects")).items()
        if isinstance(found, Project)
    }
    if project in known:
        imported = f"from overlay.compat.projects import {known[project]} as PROJECT"
        return imported, f'"""Patches of {project}."""\n'
    if not pack:
        them = ", ".join(sorted(known))
        raise SelectionError(f"there is no project {project!r}; there are {them}, and a pack may be for any")
    marker = split_site(site)[0].partition(".")[0] if site else project
    text = _fill("project.txt", project=project, marker=marker)
    return f"from {package}.{project} import PROJECT", text


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
