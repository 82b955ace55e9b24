"""Auxiliary losses give a router the gradient of one process, and report its losses, in every layout."""

from __future__ import annotations

from overlay.patch import Contract

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

#: Relative, of a gradient and of a loss in float32.
TOLERANCE = 1e-4
#: What is left as it is: a mean of ranks' means, which have different numbers of tokens.
LEFT = "z_loss, per token, padded, as reported"


def wrong(
    seed: str, *, patched: bool = True, release: Path | None = None, ranks: int = 2, left: bool = False
) -> list[str]:
    """Return the cases in which gradient or report is not that of one process, with the patch or without.

    Those that the patch leaves as they are come with `left` only.
    """
    from overlay.compat.ranks.findings import megatron_ranks

    patches = "megatron.moe-aux-scale" if patched else ""
    module = "overlay.patches.megatron.moe_aux_scale.cases"
    found = megatron_ranks(seed, module, patches, release=release, ranks=ranks)
    off = [
        f"{name}{said}"
        for name, rows in found.items()
        for figure, said in (("error", ""), ("reported", ", as reported"))
        if not all(row[figure] < TOLERANCE for row in rows)
    ]
    return [name for name in off if left or not name.endswith(LEFT)]


def check(seed: str) -> str:
    """Ask two ranks with the patch."""
    off = wrong(seed)
    return f"the router's gradient, or what is reported, is not that of one process: {off[0]}" if off else ""


CONTRACT = Contract(check=check, starts=True)
