"""Loading the patches that come with overlay, and finding those of packs.

The id of a patch is its place: the folder `patches/verl/dynamic_cp_loss/` holds `verl.dynamic-cp-loss`. (In a
pack, a file may do so too.) No list declares the patches: adding one is adding a folder.

A pack has patches of third parties. It is an entry point of the group `overlay.patches`: the name is the
pack's, the value a package laid out like `overlay.patches`. So `acme = "acme_overlay.patches"` and
`acme_overlay/patches/verl/fix.py` make the patch `acme/verl.fix`. Only `OVERLAY_PACKS` lets its code run.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from overlay import log
from overlay.errors import OverlayError, SelectionError, TrustError
from overlay.model import settings
from overlay.model.record import TYPE_CHECKING, Record
from overlay.patch import Patch, Project

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

    from overlay.patch import Contract
    from overlay.source.table import Row, Table


#: The packages that are built on the engine: our patches, and what upstreams look like. The engine mentions
#: them here alone, and by name: it imports them when it needs them, never when it is imported itself.
PACK = "overlay.patches"
COMPAT = "overlay.compat"

_CODE = (".py", ".pyc")

#: The digest of each pack's files, with overlay's own, as they were before patches were loaded from them.
_contents: dict[str, str] = {}
#: The module of each patch that was loaded, by its id.
_modules: dict[str, str] = {}
#: The rows of each table, by the package that it lies in.
_rows: dict[str, list[Row]] = {}


def check_whole() -> None:
    """Raise `OverlayError` if this overlay is imported from a checkout, where the patches lie beside it."""
    from importlib.util import find_spec

    if find_spec(PACK) is not None and find_spec(COMPAT) is not None:
        return
    folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    raise OverlayError(
        f"overlay is imported from the checkout {folder}, which has no overlay.patches: `pip install "
        f"{folder}`, then start from another folder, with this one off PYTHONPATH"
    )


def environment() -> ModuleType:
    """Return the module on projects that no patch changes.

    `RECORDED`: those whose versions a lock keeps. `SHOWN`: those that are listed with the upstreams.
    `STACKS`: those that bring a copy of the upstream `BENEATH`, the outermost first. `STARTED`: the command
    that starts a job of a project, the likeliest project first.
    """
    return import_module(f"{COMPAT}.environment")


def module_of(patch: str) -> str:
    """Return the name of the module that holds a patch, empty if it was not loaded from one."""
    return _modules.get(patch, "")


def of_overlay() -> str:
    """Return the digest of all of overlay and its patches, the same for every kind of installation."""
    from overlay.source.own_code import files, of_files

    found = {}
    for package in ("overlay", COMPAT, PACK):
        below = package.removeprefix("overlay").strip(".")
        found.update({os.path.join(below, name): path for name, path in files(package).items()})
    return of_files(found)


def content_of(pack: str) -> str:
    """Return the digest of what this process has loaded of a pack, or would load now.

    The files may change while it runs, as by an upgrade of overlay. Raises `OverlayError` if there is no such
    pack.
    """
    from overlay.source.own_code import of_pack

    if pack in sys.modules and pack in _contents:
        return _contents[pack]
    return of_overlay() if pack == PACK else of_pack(pack)


def code_in_use() -> dict[str, str]:
    """Return `content_of` overlay and of each pack that is in use, empty if something cannot be read."""
    with suppress(OSError, OverlayError):  # of what tells processes apart no job may fail
        packs = {f"pack {one.name}": one.package for one in wanted_packs()}
        return {name: content_of(package) for name, package in {"overlay": PACK, **packs}.items()}
    return {}


def of_code(patch: str) -> str:
    """Return the digest of the code of a patch and its contract, empty if it was not loaded from a file."""
    from overlay.source.own_code import of_module

    name = module_of(patch)
    return of_module(name) if name else ""


def contract_of(patch: str) -> Contract | None:
    """Return the contract in the folder of a patch that was loaded, `None` if it has none there."""
    name = f"{module_of(patch)}.contract"
    try:
        found: Contract = import_module(name).CONTRACT
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise
        return None
    return found


def tables() -> Table:
    """Return what patches were tested on: the tables beside them, and the one that `OVERLAY_TRUST` names.

    Rows of the latter, and of packs, are left out, with a warning, if the code of their patch has changed
    since. Those that come with overlay are not compared: a wheel is whole. Raises `TrustError` for no table.
    """
    from overlay.source.table import Table

    trusted = settings.trust()
    added = _trusted(trusted)
    found: dict[str, list[Row]] = {}

    def load(patch: str) -> list[Row]:
        if patch not in found:
            package = _package_of(patch)
            beside = _rows_beside(package)
            if not f"{package}.".startswith(f"{PACK}."):
                beside = _of_this_code(patch, beside, _table_of(package))
            found[patch] = [*beside, *_of_this_code(patch, added, trusted)]
        return found[patch]

    return Table(load=load)


def _trusted(path: str) -> list[Row]:
    """Return the rows of the table that `OVERLAY_TRUST` names."""
    if not path:
        return []
    from overlay.source.table import read

    try:
        return read(path)
    except (OSError, OverlayError) as error:
        why = f"{path} cannot be read: {error}" if isinstance(error, OSError) else error
        raise TrustError(f"OVERLAY_TRUST: {why}; correct it, or unset OVERLAY_TRUST") from error


def _of_this_code(patch: str, rows: list[Row], path: str) -> list[Row]:
    """Return the rows of a patch that were made with the code that it has now. Warn of others."""
    ours = [row for row in rows if row.patch == patch]
    code = of_code(patch) if ours else ""  # a defect has none, and rests on none
    kept = [row for row in ours if row.code == code]
    if len(kept) < len(ours):
        log.warning(f"ignored the rows of {patch} in {path}: its code has changed since")
    return kept


def _package_of(patch: str) -> str:
    """Return the package of the project that a patch, or a defect, is named after."""
    if patch in _modules:
        return _modules[patch].rpartition(".")[0]
    return f"{PACK}.{patch.partition('.')[0]}"


def _rows_beside(project: str) -> list[Row]:
    """Return the rows of the table in the package of a project's patches, none if it has no table."""
    if project not in _rows:
        from overlay.source.table import read

        try:
            _rows[project] = read(_table_of(project))
        except OSError:
            _rows[project] = []
    return _rows[project]


def _table_of(project: str) -> str:
    """Return the path of the table in the package of a project's patches."""
    from overlay.source.table import TABLE_FILE

    return os.path.join(next(iter(import_module(project).__path__), ""), TABLE_FILE)


def import_module(name: str) -> ModuleType:
    """Import a module and return it. `importlib` would do, but takes three more files to load."""
    __import__(name)
    return sys.modules[name]


def load_patches(pack: str = PACK, prefix: str = "") -> dict[str, Patch]:
    """Import every patch file of a pack and return the patches by id, which begins with `prefix`.

    Raises `OverlayError` if there is none, if a file defines no `PATCH`, or one whose id is not its place, or
    if one that comes with overlay is missing: its rows are there.
    """
    with suppress(OSError, OverlayError):  # what cannot be read is told by what needs it
        _contents[pack] = content_of(pack)
    patches = {patch.id: patch for patch in (_load(name, prefix + ident) for ident, name in _listed(pack))}
    if not patches:
        where = ", ".join(import_module(pack).__path__)
        raise OverlayError(f"{pack} holds no patches ({where}): it is not installed completely")
    if pack == PACK:
        tables = {name.rpartition(".")[0] for name in _modules.values() if name.startswith(f"{PACK}.")}
        wanted = {row.patch for table in tables for row in _rows_beside(table) if row.code}
        _check_missing(wanted.difference(patches))
    return patches


def _listed(pack: str) -> list[tuple[str, str]]:
    """Return the id of each patch of a pack, without a prefix, and the module that holds it."""
    return [
        (f"{project}.{name.replace('_', '-')}", f"{pack}.{project}.{name}")
        for folder in import_module(pack).__path__
        for project in _folders(folder)
        for name in modules_in(os.path.join(folder, project))
    ]


def awaited() -> tuple[frozenset[str], list[str]]:
    """Return the top-level packages that patches are for, and the ids of the patches that come with overlay.

    Imports no patch. Raises `OverlayError` if patches are missing, as after an interrupted installation or
    in a checkout.
    """
    try:
        known = vars(import_module(f"{COMPAT}.projects")).values()
        ids = [ident for ident, _ in _listed(PACK)]
    except ModuleNotFoundError:
        check_whole()
        raise
    projects = [one for one in known if isinstance(one, Project)]
    wanted = {one.name.partition("-")[0] for one in projects}
    _check_missing(wanted.difference(ident.partition(".")[0] for ident in ids))
    return frozenset(name for one in projects for name in one.packages()), ids


def _check_missing(missing: Iterable[str]) -> None:
    if them := ", ".join(sorted(missing)):
        raise OverlayError(f"patches that come with overlay are missing ({them}): install overlay again")


def _folders(folder: str) -> list[str]:
    """Return the names of the packages in a folder."""
    return _public(name for name in os.listdir(folder) if os.path.isdir(os.path.join(folder, name)))


def modules_in(folder: str) -> list[str]:
    """Return the names of the modules and packages in a folder."""
    found = []
    for file in os.listdir(folder):
        name, extension = os.path.splitext(file)
        # An image that was slimmed has the compiled files alone, and a checkout of another branch may leave
        # a folder with nothing but a cache in it.
        inside = [os.path.join(folder, file, f"__init__{ending}") for ending in _CODE]
        if extension in _CODE or (not extension and any(map(os.path.isfile, inside))):
            found.append(name)
    return _public(found)


def _public(names: Iterable[str]) -> list[str]:
    return sorted(name for name in set(names) if name.isidentifier() and not name.startswith("_"))


def _load(module: str, expected: str) -> Patch:
    import_module(module)
    patch = getattr(sys.modules[module], "PATCH", None)
    if not isinstance(patch, Patch):
        raise OverlayError(f"{module} defines no PATCH")
    if patch.id != expected:
        raise OverlayError(f"{module} defines the patch {patch.id!r}; its place asks for {expected!r}")
    _modules[patch.id] = module
    return patch


class Pack(Record):
    """An installed pack."""

    name: str
    #: The package that holds its patches.
    package: str
    distribution: str
    version: str


def wanted_packs(environ: settings.Environ = os.environ) -> list[Pack]:
    """Return the packs that `OVERLAY_PACKS` names. Raises `SelectionError` if one is missing or ambiguous."""
    wanted = settings.packs(environ)
    if not wanted:
        return []  # and `importlib.metadata`, which is slow, is not imported
    from importlib.metadata import entry_points

    # An entry point may be there twice, with its distribution on two places of the path.
    found: dict[str, set[Pack]] = {}
    for point in entry_points(group=PACK):
        about = ("", "") if point.dist is None else (point.dist.name, point.dist.version)
        pack = Pack(name=point.name, package=point.value, distribution=about[0], version=about[1])
        found.setdefault(point.name, set()).add(pack)
    for name in wanted:
        if name not in found:
            known = ", ".join(sorted(found)) or "none"
            raise SelectionError(
                f"OVERLAY_PACKS: no pack {name!r} is installed; there are: {known}. "
                "Install one from its folder by `pip install -e .`"
            )
        if len(found[name]) > 1:
            claims = sorted(f"{pack.distribution} {pack.version} ({pack.package})" for pack in found[name])
            msg = f"the name {name!r} is claimed by {' and '.join(claims)}: uninstall one of them"
            raise SelectionError(f"OVERLAY_PACKS: {msg}")
    return [pack for name in wanted for pack in found[name]]
