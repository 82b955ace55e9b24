"""In which subgroups each loss is tried: what the cases run, and what the tests ask for."""

from __future__ import annotations

import os

#: Losses that are means or choices over what is at hand.
OTHERS = ("clip_cov", "kl_cov", "geo_mean")
#: Those tried with micro-batches as they are planned. Not `kl_cov`: where but two tokens of a micro-batch
#: count, one stands out as much as the other, and which is chosen is a matter of rounding.
PLANNED = ("vanilla", "clip_cov", "geo_mean")

#: Sizes C that are tried beside tensor or pipeline parallelism.
STAGED = (2,) if os.environ.get("TESTS_ONCE") else (1, 2)


def layouts_of(world: int, kind: str) -> tuple[int | str, ...]:
    """Return the sizes C of the subgroups, and "mixed" for several at once. By day that stands for all."""
    if world == 4 and os.environ.get("TESTS_ONCE"):
        return ("mixed",)
    if world == 2:
        return (1, 2)
    return (1, 2, 4, "mixed") if kind in {*OTHERS, "user mean"} else (2, "mixed")
