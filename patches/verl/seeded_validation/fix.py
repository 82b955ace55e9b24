"""What takes the place of verl's bootstrap: the original, with the state of the generator put back."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any


def make_bootstrap_metric(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build `bootstrap_metric`: NumPy's global generator is put back after it, and after an error in it."""
    import numpy as np

    from overlay.patches.verl.seeded_validation.effect import EFFECT

    def bootstrap_metric(
        data: Any, subset_size: int, reduce_fns: Any, n_bootstrap: int = 1000, seed: int = 42
    ) -> Any:
        state = np.random.get_state()  # noqa: NPY002 -- it is what verl seeds
        try:
            return original(data, subset_size, reduce_fns, n_bootstrap, seed)
        finally:
            EFFECT.changed += 1
            np.random.set_state(state)  # noqa: NPY002

    return bootstrap_metric
