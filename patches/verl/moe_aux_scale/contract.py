"""The contract of `verl.moe-aux-scale`: with a loss per token, too, the gradient is that of one process."""

from functools import partial

from overlay.patch import Contract

#: Relative, of a gradient in float32.
TOLERANCE = 1e-5


def wrong(seed: str, *, patched: bool = False, ranks: int = 2) -> str:
    """Return what is wrong with steps of verl's own engine on so many ranks, empty if nothing is."""
    from overlay.compat.ranks.findings import megatron_ranks

    patches = "verl.moe-aux-scale" if patched else ""
    found = megatron_ranks(seed, "overlay.patches.verl.moe_aux_scale.cases", patches, ranks=ranks)
    for name, rows in found.items():
        for row in rows:
            if not row["error"] <= TOLERANCE:
                return f"{name}: the gradient is off by {row['error']:.3g}, and {row['ratio']:.3g} as large"
    return ""


CONTRACT = Contract(check=partial(wrong, patched=True), starts=True)
