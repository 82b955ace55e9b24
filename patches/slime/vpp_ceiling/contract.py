"""The number of micro-batches is a multiple for virtual stages, and none of them exceeds the budget."""

from __future__ import annotations

from overlay.patch import Contract
from overlay.patches.slime.vpp_ceiling import PATCH
from overlay.testing import assert_applied, enable


def check(seed: str) -> str:
    """Split rollouts with and without virtual stages, with the patch that this one requires."""
    enable(*PATCH.requires, PATCH.id)
    return _held(seed, "wrong")


def alike(seed: str) -> str:
    """Split them as slime does where it does so well."""
    return _held(seed, "alike")


def _held(seed: str, look: str) -> str:
    from overlay.compat.cuda_on_cpu import cuda_on_cpu
    from overlay.compat.slime_on_cpu import import_slime, splits
    from overlay.compat.slime_on_cpu.rollouts import cases

    with cuda_on_cpu():
        (data,) = import_slime("data")
        assert_applied(*PATCH.requires, PATCH.id)
        given = [one for one in cases(seed, 40) if len(one["ranks"][0]) < 100]
        found: str = getattr(splits, look)(data, given)
        return found


CONTRACT = Contract(check=check, alike=alike, before=("megatron.core", "ray", "tensordict"))
