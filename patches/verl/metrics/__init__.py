"""`verl.metrics`: verl's logger also gets what the patches changed, under `overlay/`."""

from typing import Any

import overlay
from overlay.compat.projects import VERL
from overlay.effect import effect
from overlay.patch import Patch, around, one_target, replaced, variant

EFFECT = effect(__name__, "log", did="added figures to", always=True)


@around
def log(original: Any, self: Any, data: Any, *given: Any, **named: Any) -> Any:
    """Log the figures of this process as well."""
    EFFECT.changed += 1
    return original(self, {**data, **overlay.metrics(reached=True)}, *given, **named)


PATCH = Patch(
    id="verl.metrics",
    summary="verl's logger gets what the patches changed, under overlay/",
    why="verl's loggers, such as wandb, do not show whether an applied patch ever mattered. With this one, "
    "each call also gets overlay.metrics(): the figures of the patches that were reached in this process.",
    evidence="It fixes nothing: it adds the figures of the patches to what verl logs.",
    changes=("safety",),
    met="Any job of verl's trainers that selects it.",
    upstream=("verl-project/verl#74",),
    opt_in=True,
    targets=one_target(VERL, variant("0.6", replaced("verl.utils.tracking:Tracking.log", log))),
)
