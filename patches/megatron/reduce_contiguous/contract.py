"""Two ranks add up tensors of any strides, forward and backward, as float64 arithmetic on one does."""

from __future__ import annotations

from overlay.patch import Contract

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

#: Of sums in float64 of two terms of about one.
TOLERANCE = 1e-12


def wrong(seed: str, *, patched: bool = True, release: Path | None = None) -> list[str]:
    """Return where a sum over ranks is off, with the patch or without, as `view: direction`."""
    from overlay.compat.ranks.findings import megatron_ranks

    patches = "megatron.reduce-contiguous" if patched else ""
    found = megatron_ranks(seed, "overlay.patches.megatron.reduce_contiguous.cases", patches, release=release)
    return [
        f"{view}: {direction}"
        for view, ranks in found.items()
        for direction in ("forward", "backward")
        if not all(rank[direction] < TOLERANCE for rank in ranks)
    ]


def check(seed: str) -> str:
    """Ask two ranks with the patch."""
    off = wrong(seed)
    return f"the sum over ranks is wrong of a tensor {off[0]}" if off else ""


CONTRACT = Contract(check=check, starts=True)
