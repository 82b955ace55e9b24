"""Advantages are those of one process in float64, on one rank: what needs several is not seen here."""

from __future__ import annotations

from overlay.patch import Contract
from overlay.patches.miles.whiten_over_cp import PATCH
from overlay.testing import assert_applied, enable


def check(seed: str) -> str:
    """Normalise advantages of rewards around zero, and of large ones, whose variance float32 sums lose."""
    import os

    from overlay.compat.megatron_on_cpu import megatron
    from overlay.compat.slime_on_cpu import import_slime

    os.environ["SLIME_FORK"] = "miles"
    enable(PATCH.id)
    with megatron():
        import_slime("loss")
        assert_applied(PATCH.id)
        from overlay.compat.slime_on_cpu.advantages import wrong

        return wrong(seed)


CONTRACT = Contract(check=check, before=("megatron.core", "ray", "tensordict"))
