"""An activation that is being sent keeps its memory until the send has been waited for, and no longer."""

from __future__ import annotations

from overlay.patch import Contract

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

#: Activations on their way at a time: the schedule waits for one when it has sent the next.
AT_A_TIME = 2


def wrong(seed: str, *, patched: bool = True, release: Path | None = None) -> list[str]:
    """Return the cases in which an activation is emptied while it is sent, or held for longer than that."""
    from overlay.compat.ranks.findings import megatron_ranks

    patches = "megatron.vpp-send-before-free" if patched else ""
    module = "overlay.patches.megatron.vpp_send_before_free.cases"
    found = megatron_ranks(seed, module, patches, release=release)
    return [
        name
        for name, ranks in found.items()
        if any(rank["emptied"] or rank["left"] or rank["most"] > AT_A_TIME for rank in ranks)
    ]


def check(seed: str) -> str:
    """Ask two ranks with the patch."""
    off = wrong(seed)
    return f"an activation is not held as long as it is being sent: {off[0]}" if off else ""


CONTRACT = Contract(check=check, starts=True)
