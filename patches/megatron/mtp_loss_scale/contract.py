"""Context parallel ranks get the gradient of multi-token prediction, and the loss, of one process."""

from __future__ import annotations

from overlay.patch import Contract

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

#: Relative, of gradients and losses in float32.
TOLERANCE = 1e-4


def wrong(seed: str, *, patched: bool = True, release: Path | None = None) -> list[str]:
    """Return the cases in which gradient or report is not that of one process, with the patch or without."""
    from overlay.compat.ranks.findings import megatron_ranks

    patches = "megatron.mtp-loss-scale" if patched else ""
    module = "overlay.patches.megatron.mtp_loss_scale.cases"
    found = megatron_ranks(seed, module, patches, release=release, te=True)  # main builds none without
    return [
        name
        for name, ranks in found.items()
        if not all(error < TOLERANCE for rank in ranks for error in rank.values())
    ]


def check(seed: str) -> str:
    """Ask two ranks with the patch."""
    off = wrong(seed)
    return f"gradient or report is not that of one process: {off[0]}" if off else ""


CONTRACT = Contract(check=check, starts=True)
