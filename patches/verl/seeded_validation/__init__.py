"""`verl.seeded-validation`: validation leaves the process's random numbers alone.

verl seeds NumPy's global generator to draw the subsets of its validation metrics. Its function runs as it is,
and the state of the generator from before is put back when it ends. So the metrics are the very same,
whichever of NumPy's functions draws them in this release.
"""

from __future__ import annotations

from overlay.compat.projects import VERL
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches.verl.seeded_validation.fix import make_bootstrap_metric

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
