"""No micro-batch of more than one sample exceeds the budget, and each sample is in one of them."""

from __future__ import annotations

from overlay.patch import Contract
from overlay.patches.slime.capped_partitions import PATCH
from overlay.testing import assert_applied, enable


def check(seed: str) -> str:
    """Split rollouts with whichever of its two ways this slime has."""
    from overlay.compat.slime_on_cpu import stand_in

    stand_in()
    enable(PATCH.id)
    return _held(seed, "wrong")


def alike(seed: str) -> str:
    """Split them as slime does where it does so well."""
    return _held(seed, "alike")


def _held(seed: str, look: str) -> str:
    from importlib.util import find_spec

    return (_schedules if find_spec("slime.utils.dp_schedule") else _splits)(seed, look)


def _schedules(seed: str, look: str) -> str:
    """Balance by FLOPs (slime 0.3.1)."""
    import importlib

    from overlay.compat.slime_on_cpu import schedules

    module = importlib.import_module("slime.utils.dp_schedule")
    assert_applied(PATCH.id)
    given = [one for one in schedules.cases(seed) if len(one["lengths"]) < 100][:60]
    found: str = getattr(schedules, look)(module, given)
    return found


def _splits(seed: str, look: str) -> str:
    """Balance by tokens (slime before 0.3). Alignment to virtual stages is another patch's."""
    from overlay.compat.cuda_on_cpu import cuda_on_cpu
    from overlay.compat.slime_on_cpu import import_slime, splits
    from overlay.compat.slime_on_cpu.rollouts import case, cases

    with cuda_on_cpu():
        (data,) = import_slime("data")
        assert_applied(PATCH.id)
        # Two micro-batches by first fit, over the budget once slime has evened them: drawn ones need not be.
        evened = case("over the budget once they are even", [50, 50, 35, 30, 25], budget=100)
        small = [one for one in cases(seed, 40) if len(one["ranks"][0]) < 100]
        given = [evened, *(one for one in small if one["stages"] == one["group"] == 1)]
        found: str = getattr(splits, look)(data, given)
        return found


CONTRACT = Contract(check=check, alike=alike, before=("megatron.core", "ray", "tensordict"))
