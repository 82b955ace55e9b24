"""The contract of `verl.moe-aux-scale`: with a loss per token, too, the gradient is that of one process."""

from __future__ import annotations

from overlay.patch import Contract

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

#: Relative, of a gradient in float32.
TOLERANCE = 1e-5


def wrong(seed: str, *, patched: bool = False, release: Path | None = None, ranks: int = 2) -> str:
    """Return what is wrong with steps of verl's own engine on so many ranks, empty if nothing is."""
    off = {
        name: error
        for name, error in errors(seed, patched=patched, release=release, ranks=ranks).items()
        if not error <= TOLERANCE
    }
    return "".join(f"{name}: the gradient is off by {error:.3g}" for name, error in list(off.items())[:1])


def errors(seed: str, *, patched: bool, release: Path | None = None, ranks: int = 2) -> dict[str, float]:
    """Return how far the gradient of each case is from that of one process, relatively."""
    from overlay.compat.ranks.findings import megatron_ranks

    patches = "verl.moe-aux-scale" if patched else ""
    found = megatron_ranks(
        seed, "overlay.patches.verl.moe_aux_scale.cases", patches, release=release, ranks=ranks
    )
    return {name: max(row["error"] for row in rows) for name, rows in found.items()}


def check(seed: str) -> str:
    """Ask two ranks with the patch."""
    return wrong(seed, patched=True)


CONTRACT = Contract(check=check, starts=True)
