"""Context parallel ranks with different numbers of tokens get the gradient of one process."""

from __future__ import annotations

from overlay.patch import Contract

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

#: Relative, of a gradient in float32.
TOLERANCE = 1e-5


def wrong(seed: str, *, patched: bool = True, release: Path | None = None) -> list[str]:
    """Return the cases in which the gradient is not that of one process, with the patch or without."""
    from overlay.compat.ranks.findings import megatron_ranks

    patches = "megatron.masked-loss-cp" if patched else ""
    found = megatron_ranks(seed, "overlay.patches.megatron.masked_loss_cp.cases", patches, release=release)
    return [name for name, ranks in found.items() if not all(rank["error"] < TOLERANCE for rank in ranks)]


def check(seed: str) -> str:
    """Ask two ranks with the patch."""
    off = wrong(seed)
    return f"the gradient is not that of one process: {off[0]}" if off else ""


CONTRACT = Contract(check=check, starts=True)
