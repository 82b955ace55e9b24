"""`slime.metrics`: what the patches changed goes to the logger of the job, under `overlay/`."""

from typing import Any

import overlay
from overlay.compat.projects import SLIME
from overlay.effect import effect
from overlay.patch import Patch, around, one_target, replaced, variant

EFFECT = effect(__name__, "log", did="added figures to", always=True)


@around
def log(original: Any, args: Any, metrics: Any, *given: Any, **named: Any) -> Any:
    """Log the figures of this process as well."""
    EFFECT.changed += 1
    return original(args, {**metrics, **overlay.metrics(reached=True)}, *given, **named)


_OLDEST, _OLD = "slime.utils.tracking_utils", "slime.utils.logging_utils"
PATCH = Patch(
    id="slime.metrics",
    summary="slime's logger gets what the patches changed, under overlay/",
    why="slime's loggers, such as wandb, do not show whether an applied patch ever mattered. With this one, "
    "each call also gets overlay.metrics(): the figures of the patches that were reached in this process.",
    changes=("safety",),
    met="Any job of slime's that selects it.",
    upstream=("THUDM/slime#801",),
    opt_in=True,
    evidence="It adds names to what is logged, and changes no number of a job.",
    targets=one_target(
        SLIME,
        variant("0.2.0", replaced(f"{_OLDEST}:log", log)),
        variant("0.2.2", replaced(f"{_OLD}:log", log)),
        variant("0.3.2", replaced("slime.observability.logging_utils:log", log)),
        tells=(_OLDEST, _OLD),
    ),
)
