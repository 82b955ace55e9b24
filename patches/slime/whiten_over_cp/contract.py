"""Advantages are those of one process in float64, on one rank: what needs several is not seen here."""

from __future__ import annotations

from overlay.patch import Contract
from overlay.patches.slime.whiten_over_cp import PATCH
from overlay.testing import assert_applied, enable


def check(seed: str) -> str:
    """Normalise advantages of rewards around zero, and of large ones, whose variance float32 sums lose."""
    enable(PATCH.id)
    return _held(seed, "wrong")


def alike(seed: str) -> str:
    """Whiten as the upstream does on one rank, where it is right about values near zero."""
    return _held(seed, "alike")


def _held(seed: str, look: str) -> str:
    import importlib

    from overlay.compat.megatron_on_cpu import megatron
    from overlay.compat.slime_on_cpu import import_slime

    with megatron():
        import_slime("loss")
        assert_applied(PATCH.id)
        module = importlib.import_module("overlay.compat.slime_on_cpu.advantages")
        found: str = getattr(module, look)(seed)
        return found


CONTRACT = Contract(check=check, alike=alike, before=("megatron.core", "ray", "tensordict"))
