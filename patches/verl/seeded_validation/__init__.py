"""`verl.seeded-validation`: validation leaves the process's random numbers alone."""

from typing import Any

from overlay.compat.projects import VERL
from overlay.effect import effect
from overlay.patch import Patch, around, one_target, replaced, variant

EFFECT = effect(__name__, "metric", did="put the generator back after", always=True)


@around
def bootstrap_metric(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Restore NumPy's global generator after the original, also after an error in it."""
    import numpy as np

    state = np.random.get_state()  # noqa: NPY002 -- it is what verl seeds
    try:
        return original(*args, **kwargs)
    finally:
        EFFECT.changed += 1
        np.random.set_state(state)  # noqa: NPY002


PATCH = Patch(
    id="verl.seeded-validation",
    summary="Validation leaves the process's NumPy generator alone",
    why="verl seeds NumPy's global generator with 42 for each metric that it estimates from several "
    "responses to a prompt. Whatever else draws from it in the trainer's process (a sampler, a reward "
    "function, an augmentation) draws the same numbers after each validation. With the patch the generator "
    "is restored, and the metrics are the same to the last bit.",
    evidence="The metrics are verl's own under its own seed, and no release documents the reset.",
    changes=("numbers",),
    met="Validation with several responses to a prompt, and code in the process that draws from np.random.",
    upstream=("verl-project/verl#7260",),
    targets=one_target(
        VERL,
        variant("0.6", replaced("verl.trainer.ppo.metric_utils:bootstrap_metric", bootstrap_metric)),
    ),
)
