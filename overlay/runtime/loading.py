"""Loading the patches that come with overlay and those of packs: a pin is asked before a pack's code runs."""

from __future__ import annotations

from overlay.errors import OverlayError
from overlay.model import settings
from overlay.source.registry import check_whole, ids, load_patches, missing_projects, watched_packages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from overlay.patch import Patch


def awaited() -> tuple[frozenset[str], list[str]]:
    """Return the top-level packages that patches are for, and the ids of those that come with overlay.

    No patch is imported. Raises `OverlayError` if they are not there, or not all of them.
    """
    try:
        found = watched_packages(), ids()
        missing = missing_projects()
    except ModuleNotFoundError:
        check_whole()
        raise
    if missing:
        them = ", ".join(missing)
        raise OverlayError(f"patches that come with overlay are missing ({them}): install overlay again")
    return found


def load_all() -> dict[str, Patch]:
    """Return the patches that come with overlay and those of the packs that `OVERLAY_PACKS` names, by id.

    Raises `SelectionError` if a pack is not installed, and `OverlayError` if it cannot be loaded, or if the
    patches that come with overlay are not there.
    """
    awaited()
    patches = load_patches()
    if not settings.packs():
        return patches
    from overlay.source.packs import named

    packs = named()
    wanted = settings.pin()
    if wanted:
        from overlay.records.pin import check_packs

        check_packs(wanted, packs)
    for pack in packs:
        try:
            found = load_patches(pack.package, prefix=f"{pack.name}/")
        except OverlayError:
            raise
        except Exception as error:
            msg = f"the pack {pack.name} ({pack.distribution} {pack.version}) cannot be loaded: {error!r}"
            raise OverlayError(msg) from error
        patches.update(found)
    return patches
