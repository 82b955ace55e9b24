"""The number of micro-batches is a multiple for virtual stages, and none of them exceeds the budget."""

from __future__ import annotations

from overlay.patch import Contract
from overlay.patches.slime.vpp_ceiling import PATCH
from overlay.testing import assert_applied, enable


def check(seed: str) -> str:
    """Split rollouts with and without virtual stages, with the patch that this one requires."""
    from overlay.compat.cuda_on_cpu import cuda_on_cpu
    from overlay.compat.slime_on_cpu import import_slime
    from overlay.compat.slime_on_cpu.rollouts import cases
    from overlay.compat.slime_on_cpu.splits import wrong

    both = (*PATCH.requires, PATCH.id)
    enable(*both)
    with cuda_on_cpu():
        (data,) = import_slime("data")
        assert_applied(*both)
        return wrong(data, [one for one in cases(seed, 40) if len(one["ranks"][0]) < 100])


CONTRACT = Contract(check=check, before=("megatron.core", "ray", "tensordict"))
