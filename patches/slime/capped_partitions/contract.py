"""No micro-batch of more than one sample exceeds the budget, and each sample is in one of them."""

import importlib
from functools import partial
from importlib.util import find_spec

from overlay.compat.contracts.slime import contract


def wrong(seed: str, look: str = "wrong") -> str:
    """Return what is wrong with splits of rollouts, or, as `alike`, with those that slime splits well."""
    from overlay.compat.slime_on_cpu import stand_in

    stand_in()
    return (_schedules if find_spec("slime.utils.dp_schedule") else _splits)(seed, look)


def _schedules(seed: str, look: str) -> str:
    """Balance by FLOPs (slime 0.3.1)."""
    from overlay.compat.slime_on_cpu import schedules

    module = importlib.import_module("slime.utils.dp_schedule")
    given = [one for one in schedules.cases(seed) if len(one["lengths"]) < 100][:60]
    return str(getattr(schedules, look)(module, given))


def _splits(seed: str, look: str) -> str:
    """Balance by tokens (slime before 0.3). Alignment to virtual stages is another patch's."""
    from overlay.compat.cuda_on_cpu import cuda_on_cpu
    from overlay.compat.slime_on_cpu import import_slime, splits
    from overlay.compat.slime_on_cpu.rollouts import case, cases

    with cuda_on_cpu():
        (data,) = import_slime("data")
        # Two micro-batches by first fit, over the budget once slime has evened them: drawn ones need not be.
        evened = case("over the budget once they are even", [50, 50, 35, 30, 25], budget=100)
        small = [one for one in cases(seed, 40) if len(one["ranks"][0]) < 100]
        given = [evened, *(one for one in small if one["stages"] == one["group"] == 1)]
        return str(getattr(splits, look)(data, given))


CONTRACT = contract(wrong, "slime.capped-partitions", alike=partial(wrong, look="alike"))
