"""Packs: patches of third parties, found through the entry points of the group `overlay.patches`.

An entry point's name is the pack's, its value a package laid out as `overlay.patches` is:
`acme = "acme_overlay.patches"` and `acme_overlay/patches/verl/fix.py` make the patch `acme/verl.fix`. The
code of a pack runs only if `OVERLAY_PACKS` names it.
"""

from __future__ import annotations

from overlay.errors import SelectionError
from overlay.model import settings
from overlay.model.record import Record

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
    from importlib.metadata import entry_points

    # An entry point may be there twice, with its distribution on two places of the path.
    found: dict[str, set[Pack]] = {}
    for point in entry_points(group=GROUP):
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
            them = " and ".join(claims)
            msg = f"OVERLAY_PACKS: the name {name!r} is claimed by {them}: uninstall one of them"
            raise SelectionError(msg)
    return [pack for name in wanted for pack in found[name]]
