"""A router gets the gradient of one process from its auxiliary losses, whatever the layout of two ranks."""

from __future__ import annotations

from overlay.patch import Contract

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

#: Relative, of a gradient in float32.
TOLERANCE = 1e-4


def wrong(seed: str, *, patched: bool = True, release: Path | None = None, ranks: int = 2) -> list[str]:
    """Return the cases in which the gradient is not that of one process, with the patch or without."""
    from overlay.compat.ranks.findings import megatron_ranks

    patches = "megatron.moe-aux-scale" if patched else ""
    module = "overlay.patches.megatron.moe_aux_scale.cases"
    found = megatron_ranks(seed, module, patches, release=release, ranks=ranks)
    return [name for name, rows in found.items() if not all(row["error"] < TOLERANCE for row in rows)]


def check(seed: str) -> str:
    """Ask two ranks with the patch."""
    off = wrong(seed)
    return f"the router's gradient is not that of one process: {off[0]}" if off else ""


CONTRACT = Contract(check=check, starts=True)
