"""All ranks clip by the norm of the whole model's gradient, whatever Transformer Engine marked."""

from __future__ import annotations

from overlay.patch import Contract

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

#: Relative, of norms and updates in float32 whose steps are taken from zero.
TOLERANCE = 1e-5
#: The last Transformer Engine that marks the weights of grouped experts, and one that does not.
MARKED, UNMARKED = "2.12.0", "2.15.0"


def wrong(
    seed: str,
    transformer_engine: str,
    *,
    patched: bool = True,
    release: Path | None = None,
    ranks: int = 2,
) -> list[str]:
    """Return the cases in which norm or update is not that of the whole model, with the patch or without."""
    from overlay.compat.ranks.findings import megatron_ranks

    found = megatron_ranks(
        seed,
        "overlay.patches.megatron.grad_norm.cases",
        "megatron.grad-norm" if patched else "",
        release=release,
        te=transformer_engine,
        ranks=ranks,
    )
    return [
        name
        for name, rows in found.items()
        if not all(error < TOLERANCE for row in rows for error in row.values())
    ]


def check(seed: str) -> str:
    """Ask two ranks with the patch, on a Transformer Engine that does not mark experts."""
    off = wrong(seed, UNMARKED)
    return f"norm or update is not that of the whole model: {off[0]}" if off else ""


CONTRACT = Contract(check=check, starts=True)
