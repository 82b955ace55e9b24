"""The number of micro-batches is a multiple for virtual stages, and none of them exceeds the budget."""

from functools import partial

from overlay.compat.contracts.slime import contract


def wrong(seed: str, look: str = "wrong") -> str:
    """Return what is wrong with splits of rollouts, or, as `alike`, with those that slime splits well."""
    from overlay.compat.cuda_on_cpu import cuda_on_cpu
    from overlay.compat.slime_on_cpu import import_slime, splits
    from overlay.compat.slime_on_cpu.rollouts import cases

    with cuda_on_cpu():
        (data,) = import_slime("data")
        given = [one for one in cases(seed, 40) if len(one["ranks"][0]) < 100]
        return str(getattr(splits, look)(data, given))


CONTRACT = contract(wrong, "slime.capped-partitions", "slime.vpp-ceiling", alike=partial(wrong, look="alike"))
