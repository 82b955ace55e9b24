"""The contract of `verl.seeded-validation`: the metrics of a fresh process, and the generator left alone."""

# ruff: noqa: NPY002 -- what is looked at is the generator that the process shares
from __future__ import annotations

import random
from typing import Any

from overlay.patch import Contract
from overlay.testing import with_patches


def wrong(seed: str) -> str:
    """Return what is wrong with drawn metrics and with what is drawn after them, empty if nothing is."""
    import numpy as np
    from verl.trainer.ppo import metric_utils

    draw = random.Random(seed)
    for _ in range(5):
        data = [draw.random() for _ in range(draw.randint(1, 20))]
        size, own = draw.randint(1, 20), draw.randrange(2**32)
        np.random.seed(own)
        np.random.standard_normal(draw.randint(0, 3))  # an odd number leaves a value for the next call
        expected = np.random.RandomState()
        expected.set_state(np.random.get_state())
        found = metric_utils.bootstrap_metric(data, size, [np.mean, np.max], 40, own)
        if not np.allclose(found, reference(data, size, own), rtol=1e-12):
            return f"{found} is not what seed {own} gives"
        if _drawn(np.random) != _drawn(expected):
            return "the process draws other numbers after a validation"
    np.random.seed(0)
    try:
        metric_utils.bootstrap_metric([], 1, [np.mean])
    except ValueError:
        pass
    else:
        return "nothing to draw from is no error"
    return "" if _drawn(np.random) == _drawn(np.random.RandomState(0)) else "an error leaves it seeded"


def reference(data: list[float], size: int, seed: int) -> list[tuple[float, float]]:
    """Return mean and deviation of the mean and the greatest of 40 drawn subsets."""
    import numpy as np

    # One row after the other: NumPy draws them so as well when it is asked for all.
    drawn = np.random.RandomState(seed).randint(0, len(data), size=(40, size))
    subsets = np.array(data)[drawn]
    return [(float(of.mean()), float(of.std())) for of in (subsets.mean(1), subsets.max(1))]


def _drawn(generator: Any) -> list[float]:
    """Return numbers of both kinds that a generator may have a rest of."""
    return [*generator.standard_normal(3).tolist(), *generator.random_sample(3).tolist()]


CONTRACT = Contract(check=with_patches(wrong, "verl.seeded-validation"), before=("verl.protocol",))
