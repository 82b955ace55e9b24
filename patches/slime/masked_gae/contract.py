"""Advantages are those of the trained tokens alone, on one rank: what needs several is not seen here."""

from __future__ import annotations

from overlay.patch import Contract
from overlay.patches.slime.masked_gae import PATCH
from overlay.testing import assert_applied, enable


def check(seed: str) -> str:
    """Estimate with tokens that are masked and with none, with a KL penalty and without."""
    from overlay.compat.megatron_on_cpu import megatron
    from overlay.compat.slime_on_cpu import import_slime

    both = (*PATCH.requires, PATCH.id)
    enable(*both)
    with megatron():
        import_slime("loss")
        assert_applied(*both)
        from overlay.compat.slime_on_cpu.masked_gae import wrong

        return wrong(seed)


CONTRACT = Contract(check=check, before=("megatron.core", "ray", "tensordict"))
