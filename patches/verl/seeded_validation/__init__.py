"""`verl.seeded-validation`: validation leaves the process's random numbers alone.

verl seeds NumPy's global generator to draw the subsets of its validation metrics. Its function runs as it is,
and the state of the generator from before is put back when it ends. So the metrics are the very same,
whichever of NumPy's functions draws them in this release.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from overlay.compat.projects import VERL
from overlay.effect import effect
from overlay.patch import Patch, one_target, replaced, variant

EFFECT = effect(__name__, "metric", did="put the generator back after", always=True)


def make_bootstrap_metric(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build `bootstrap_metric`: NumPy's global generator is put back after it, and after an error in it."""
    import numpy as np

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


PATCH = Patch(
    id="verl.seeded-validation",
    summary="Validation leaves the process's NumPy generator alone",
    why=(
        "verl calls np.random.seed(42) for each metric that it estimates from several responses to a prompt, "
        "so that every validation sets NumPy's global generator back: whatever else draws from it in the "
        "trainer's process (a sampler, a reward function, an augmentation in a loader without workers) draws "
        "the same numbers after each validation. With the patch the generator is where it was, and the "
        "metrics are the same to the last bit. A job that draws from the generator sees other numbers than "
        "before, a job that does not sees none."
    ),
    evidence=(
        "The metrics come from verl's own function under verl's own seed, and the contract compares them "
        "with NumPy's. No release of verl documents that a validation sets the generator back."
    ),
    changes=("numbers",),
    met=(
        "Validation with several responses to a prompt, and code in the trainer's process "
        "that draws from np.random."
    ),
    upstream=("verl-project/verl#7260",),
    targets=one_target(
        VERL,
        variant(
            "0.6",
            replaced("verl.trainer.ppo.metric_utils:bootstrap_metric", make_bootstrap_metric),
        ),
    ),
)
