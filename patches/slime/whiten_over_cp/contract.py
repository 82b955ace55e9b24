"""Advantages are those of one process in float64, on one rank: what needs several is not seen here."""

from __future__ import annotations

import functools

from overlay.patch import Contract
from overlay.testing import with_patches


def wrong(seed: str, look: str = "wrong") -> str:
    """Return which advantages are others, of rewards around zero, and of large ones, empty if none are.

    Float32 sums lose the variance of large ones. `alike` looks at values near zero, about which slime is
    right on one rank.
    """
    from overlay.compat.megatron_on_cpu import megatron

    with megatron():
        from overlay.compat.slime_on_cpu import advantages

        return str(getattr(advantages, look)(seed))


CONTRACT = Contract(
    check=with_patches(wrong, "slime.whiten-over-cp"),
    alike=functools.partial(wrong, look="alike"),
    before=("megatron.core", "ray", "tensordict"),
)
