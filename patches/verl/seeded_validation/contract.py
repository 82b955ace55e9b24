"""Metrics are those of a fresh process, and the process's generator goes on as if nothing had been drawn."""

# ruff: noqa: NPY002 -- the generator that the process shares is what is looked at
import random
from typing import Any

from overlay.patch import Contract
from overlay.testing import with_patches


def wrong(seed: str) -> str:
    """Return what is wrong with drawn metrics and with what is drawn after them, empty if nothing is."""
    import numpy as np
    from verl.trainer.ppo import metric_utils

    def drawn(generator: Any) -> list[float]:
        return [*generator.standard_normal(3).tolist(), *generator.random_sample(3).tolist()]

    draw = random.Random(seed)
    for _ in range(5):
        data = [draw.random() for _ in range(draw.randint(1, 20))]
        size, own = draw.randint(1, 20), draw.randrange(2**32)
        np.random.seed(own)
        np.random.standard_normal(draw.randint(0, 3))  # an odd number leaves a value for the next call
        expected = np.random.RandomState()
        expected.set_state(np.random.get_state())
        found = metric_utils.bootstrap_metric(data, size, [np.mean, np.max], 40, own)
        # NumPy draws all subsets row by row, as verl draws them one after the other.
        subsets = np.array(data)[np.random.RandomState(own).randint(0, len(data), size=(40, size))]
        reference = [(of.mean(), of.std()) for of in (subsets.mean(1), subsets.max(1))]
        if not np.allclose(found, reference, rtol=1e-12):
            return f"{found} is not what seed {own} gives"
        if drawn(np.random) != drawn(expected):
            return "the process draws other numbers after a validation"
    np.random.seed(0)
    try:
        metric_utils.bootstrap_metric([], 1, [np.mean])
    except ValueError:
        return "" if drawn(np.random) == drawn(np.random.RandomState(0)) else "an error leaves it seeded"
    return "nothing to draw from is no error"


CONTRACT = Contract(check=with_patches(wrong, "verl.seeded-validation"), before=("verl.protocol",))
