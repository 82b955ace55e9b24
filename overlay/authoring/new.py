"""Where a new patch belongs, and its files: in a checkout of overlay, or in one of a pack."""

from __future__ import annotations

import os
import re
from importlib import import_module

from overlay.authoring import lint, packaging
from overlay.authoring.template import UNKNOWN, Draft, patch_texts, read_site, test_text
from overlay.base import settings, toml
from overlay.base.record import Record
from overlay.catalogue.packs import GROUP
from overlay.catalogue.registry import COMPAT, PACK
from overlay.errors import SelectionError
from overlay.patch import Project

TYPE_CHECKING = False
if TYPE_CHECKING:
    from overlay.reading.source import Tree

_ADDRESS = re.compile(r"https://github\.com/([\w.-]+/[\w.-]+)/(pull|issues|commit)/([0-9a-f]+).*")


class Home(Record):
    """A folder with a package of patches."""

    #: The name of the pack, empty for overlay itself.
    pack: str
    #: The package, and where it lies below the folder.
    package: str
    path: str


class Wish(Record):
    """What somebody wants to write."""

    #: The patch's id. The project may be missing from it, and so may the pack.
    id: str
    #: The project that is patched, as patch ids or as its distribution name it.
    project: str = ""
    #: The functions that are to be replaced.
    sites: tuple[str, ...] = ()
    #: Where upstream discusses it: `owner/repo#number`, or its address on GitHub.
    upstream: str = ""


class Written(Record):
    """What `overlay new` wrote, by paths below the folder."""

    id: str
    #: The folder of the patch.
    patch: str
    test: str
    #: The package that the folder is, which `packages` of `pyproject.toml` has to list.
    package: str
    #: Whether it does: in a pack, it may be that all packages are found without a list.
    listed: bool


def write(wish: Wish, folder: str, tree: Tree) -> Written:
    """Write a patch's folder and its test, which fails until all is filled in, into the checkout `folder`.

    The sites are looked up in `tree`.

    Raises:
        SelectionError: A name is none, the folder is no such checkout, or a file is there already.
        SourceError: The source of a site cannot be read.

    """
    home = _home(folder, wish.id)
    constant, ident = _identify(wish.id, wish.project, home)
    place = ident.rpartition("/")[2].replace("-", "_").replace(".", "/")
    patch = f"{home.path}/{place}"
    test = _test_file(folder, place)
    module = f"{home.package}.{place.replace('/', '.')}"
    draft = Draft(
        id=ident,
        module=module,
        project=constant,
        sites=tuple(read_site(site, tree) for site in wish.sites) or (UNKNOWN,),
        upstream=_reference(wish.upstream),
        test=test,
    )
    texts = {f"{patch}/{name}": text for name, text in patch_texts(draft).items()}
    texts[test] = test_text(ident, module)
    for path in (f"{patch}.py", *texts):
        if os.path.lexists(os.path.join(folder, path)):
            raise SelectionError(f"{path} is there already, and nothing was written")
    try:
        _put(folder, {**_packages(folder, home, place), **texts})
        listed = packaging.add(os.path.join(folder, "pyproject.toml"), module, write=not home.pack)
    except OSError as error:
        raise SelectionError(f"the files cannot be written: {error}") from error
    return Written(id=ident, patch=patch, test=test, package=module, listed=listed)


def _home(folder: str, name: str) -> Home:
    """Return where the patches of a checkout lie."""
    if os.path.isfile(os.path.join(folder, "overlay", "catalogue", "registry.py")):
        return Home(pack="", package=PACK, path="patches")
    packs = _entry_points(os.path.join(folder, "pyproject.toml"))
    if not packs:
        raise SelectionError(
            f"{folder} is no checkout of overlay, and none of a pack, whose pyproject.toml names it under "
            f'[project.entry-points."{GROUP}"]'
        )
    wanted = name.rpartition("/")[0]
    if wanted not in packs and (wanted or len(packs) > 1):
        raise SelectionError(
            f"which pack? {name!r} names none of those of this checkout: {', '.join(sorted(packs))}"
        )
    pack = wanted or next(iter(packs))
    if not settings.is_pack_name(pack):
        raise SelectionError(f"{pack!r} is not the name of a pack: small letters, digits and hyphens")
    path = packs[pack].replace(".", "/")
    for place in (path, f"src/{path}"):
        if os.path.isdir(os.path.join(folder, place)):
            return Home(pack=pack, package=packs[pack], path=place)
    raise SelectionError(
        f"the pack {pack} is the package {packs[pack]}, and there is no folder {path} or src/{path}"
    )


def _entry_points(file: str) -> dict[str, str]:
    """Return the packs that a `pyproject.toml` declares, by name, none if there is no such file."""
    try:
        data = toml.read(file)
    except FileNotFoundError:
        return {}
    except (OSError, toml.TomlError) as error:
        raise SelectionError(f"{file} cannot be read: {error}") from error
    found: object = data
    for name in ("project", "entry-points", GROUP):
        found = found.get(name, {}) if isinstance(found, dict) else None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise SelectionError(f'{file}: project.entry-points."{GROUP}" is not a table of texts')
    return found


def _identify(name: str, project: str, home: Home) -> tuple[str, str]:
    """Return the constant of the project in `compat`, and the whole id of the patch."""
    known = {
        constant: found.name
        for constant, found in vars(import_module(f"{COMPAT}.projects")).items()
        if isinstance(found, Project)
    }
    pack, _, rest = name.rpartition("/")
    if pack and not home.pack:
        raise SelectionError(
            f"{name!r} is the id of a pack's patch, and this is the checkout of overlay itself"
        )
    short = project.partition("-")[0]
    if "." not in rest and short:
        rest = f"{short}.{rest}"
    ident = f"{home.pack}/{rest}" if home.pack else rest
    if not lint.ID.fullmatch(ident):
        raise SelectionError(
            f"{name!r} is no patch id: say project.words-with-hyphens, in small letters and digits"
        )
    of = rest.partition(".")[0]
    if short not in ("", of):
        raise SelectionError(f"{name!r} is named after another project than {project!r}")
    for constant, distribution in known.items():
        if distribution.partition("-")[0] == of and project in ("", of, distribution):
            return constant, ident
    them = ", ".join(sorted(distribution.partition("-")[0] for distribution in known.values()))
    raise SelectionError(
        f"there is no project {project or of!r} in overlay.compat.projects; there are: {them}"
    )


def _reference(upstream: str) -> str:
    """Return where upstream discusses it as patches write it."""
    address = _ADDRESS.fullmatch(upstream)
    if address:
        upstream = f"{address[1]}{'@' if address[2] == 'commit' else '#'}{address[3]}"
    if upstream and not lint.UPSTREAM.fullmatch(upstream):
        raise SelectionError(
            f"{upstream!r} is neither owner/repo#number nor owner/repo@commit nor an address on GitHub"
        )
    return upstream


def _test_file(folder: str, place: str) -> str:
    """Return the path of the test: pytest tells tests apart by their files' names alone."""
    project, _, name = place.partition("/")
    taken = {file for _, _, files in os.walk(os.path.join(folder, "tests")) for file in files}
    file = f"test_{name}.py"
    here = f"tests/patches/{project}/{file}"
    if file in taken and not os.path.lexists(os.path.join(folder, here)):
        return f"tests/patches/{project}/test_{project}_{name}.py"
    return here


def _packages(folder: str, home: Home, place: str) -> dict[str, str]:
    """Return the `__init__.py` that the project's folder still lacks."""
    file = f"{home.path}/{place.partition('/')[0]}/__init__.py"
    return {} if os.path.exists(os.path.join(folder, file)) else {file: '"""Patches of one project."""\n'}


def _put(folder: str, texts: dict[str, str]) -> None:
    for path, text in texts.items():
        whole = os.path.join(folder, path)
        os.makedirs(os.path.dirname(whole), exist_ok=True)
        with open(whole, "x", encoding="utf-8") as file:
            file.write(text)
