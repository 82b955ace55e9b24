"""`verl.metrics`: what the patches changed goes to the logger of the job, under `overlay/`.

It mends nothing. `OVERLAY_METRICS=1` selects it along with whatever else is.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from overlay.compat.projects import VERL
from overlay.effect import effect
from overlay.patch import Patch, one_target, replaced, variant

EFFECT = effect(__name__, "log", did="added figures to", always=True)


def make_log(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap the call that logs: it gets what was to be logged, and the figures of this process."""
    import overlay

    def log(self: Any, data: Any, step: Any, backend: Any = None) -> Any:
        EFFECT.changed += 1
        return original(self, {**data, **overlay.metrics(reached=True)}, step, backend)

    return log


PATCH = Patch(
    id="verl.metrics",
    summary="verl's logger gets what the patches changed, under overlay/",
    why=(
        "Whether a patch that is applied ever mattered is asked where a run is looked at: in wandb, "
        "tensorboard or what else verl logs to. Nothing upstream knows of patches. With this one, each call "
        "of verl's logger gets overlay.metrics() as well, of the patches that were reached in the process "
        "that logs."
    ),
    evidence="It mends nothing: it adds the figures of the patches to what verl logs.",
    changes=("safety",),
    met="OVERLAY_METRICS=1. It changes no number of a job: more names are logged.",
    upstream=("verl-project/verl#74",),
    opt_in=True,
    switch="OVERLAY_METRICS",
    targets=one_target(
        VERL,
        variant(
            "0.6",
            replaced("verl.utils.tracking:Tracking.log", make_log),
        ),
    ),
)
