"""Loading the patches that come with overlay and those of packs: a pin is asked before a pack's code runs."""

from __future__ import annotations

from overlay.base import settings
from overlay.catalogue.deferred import index_of
from overlay.catalogue.registry import PACK, check_whole, deferred_patches, load_patches
from overlay.errors import OverlayError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from overlay.patch import Patch

#: How many missing patches an error names.
_NAMED = 4


def load_all() -> dict[str, Patch]:
    """Return the patches that come with overlay and those of the packs that `OVERLAY_PACKS` names, by id.

    Raises `SelectionError` if a pack is not installed, and `OverlayError` if it cannot be loaded, or if one
    of the patches that come with overlay is missing.
    """
    try:
        patches = deferred_patches()
    except ModuleNotFoundError:
        check_whole()
        raise
    missing = sorted({*index_of(PACK)}.difference(patches))
    if missing:
        count = f"{len(missing)} of the patches that come with overlay are missing"
        raise OverlayError(
            f"{count} ({', '.join(missing[:_NAMED])}{', ...' if missing[_NAMED:] else ''}): install "
            "overlay again; in a checkout, `./scripts/matrix index` writes their index anew"
        )
    if not settings.packs():
        return patches
    from overlay.catalogue.packs import named

    packs = named()
    wanted = settings.pin()
    if wanted:
        from overlay.pinning.pin import check_packs

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
