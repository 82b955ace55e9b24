"""Advantages are those of the trained tokens alone, on one rank: what needs several is not seen here."""

from __future__ import annotations

from overlay.patch import Contract
from overlay.patches.slime.masked_gae import PATCH
from overlay.testing import assert_applied, enable


def check(seed: str) -> str:
    """Estimate with tokens that are masked and with none, with a KL penalty and without."""
    enable(*PATCH.requires, PATCH.id)
    return _held(seed, "wrong")


def alike(seed: str) -> str:
    """Estimate as slime does where all tokens are trained."""
    return _held(seed, "alike")


def _held(seed: str, look: str) -> str:
    import importlib

    from overlay.compat.megatron_on_cpu import megatron
    from overlay.compat.slime_on_cpu import import_slime

    with megatron():
        import_slime("loss")
        assert_applied(*PATCH.requires, PATCH.id)
        module = importlib.import_module("overlay.compat.slime_on_cpu.masked_gae")
        found: str = getattr(module, look)(seed)
        return found


CONTRACT = Contract(check=check, alike=alike, before=("megatron.core", "ray", "tensordict"))
