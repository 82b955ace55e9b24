"""Packs: patches of third parties, found through the entry points of the group `overlay.patches`.

An entry point's name is the pack's, its value a package laid out as `overlay.patches` is:
`acme = "acme_overlay.patches"` and `acme_overlay/patches/verl/fix.py` make the patch `acme/verl.fix`. Listing
packs reads metadata and files. The code of a pack runs only if `OVERLAY_PACKS` names it.
"""

from __future__ import annotations

from overlay.errors import SelectionError
from overlay.model import settings
from overlay.model.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from importlib.metadata import EntryPoint


GROUP = "overlay.patches"


class Pack(Record):
    """An installed pack."""

    name: str
    #: The package that holds its patches.
    package: str
    distribution: str
    version: str


def named() -> list[Pack]:
    """Return the packs that `OVERLAY_PACKS` names. Raises `SelectionError` if one is missing or ambiguous."""
    wanted = settings.packs()
    if not wanted:
        return []  # and `importlib.metadata`, which is slow, is not imported
    by_name = {pack.name: pack for pack in installed(wanted)}
    for name in wanted:
        if name not in by_name:
            known = ", ".join(pack.name for pack in installed()) or "none"
            raise SelectionError(
                f"OVERLAY_PACKS: no pack {name!r} is installed; there are: {known}. "
                "Install one from its folder by `pip install -e .`"
            )
    return [by_name[name] for name in wanted]


def installed(wanted: Iterable[str] | None = None) -> list[Pack]:
    """Return all packs, or the wanted ones, by name, without importing any.

    Raises `SelectionError` if two distributions, or two entry points of one, claim a wanted name.
    """
    from importlib.metadata import entry_points

    # A distribution that is found twice on the path is asked once by this function, but not an entry point
    # that is there twice.
    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=GROUP):
        if settings.is_pack_name(point.name):
            found.setdefault(point.name, []).append(point)
    packs = []
    for name, points in sorted(found.items()):
        claims = sorted({_pack(point) for point in points}, key=repr)
        if len(claims) > 1 and wanted is not None and name in wanted:
            them = " and ".join(f"{pack.distribution} {pack.version} ({pack.package})" for pack in claims)
            msg = f"OVERLAY_PACKS: the name {name!r} is claimed by {them}: uninstall one of them"
            raise SelectionError(msg)
        packs += claims
    return packs


def _pack(point: EntryPoint) -> Pack:
    dist = point.dist
    return Pack(
        name=point.name,
        package=point.value,
        distribution="" if dist is None else dist.name,
        version="" if dist is None else dist.version,
    )
