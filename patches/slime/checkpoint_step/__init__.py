"""`slime.checkpoint-step`: the step of the reference's checkpoint is not that of the models loaded after it.

slime borrows the actor's arguments to load another model and puts them back, all but a step that was not set.
The method is wrapped.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from overlay.compat.projects import SLIME
from overlay.effect import effect
from overlay.patch import Patch, one_target, replaced, variant

_LOAD = "slime.backends.megatron_utils.actor:MegatronTrainRayActor.load_other_checkpoint"
EFFECT = effect(__name__, "load", did="put the step back after")


def make_load_other(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap the loading of another model than the actor, whose arguments it borrows."""

    def load_other_checkpoint(self: Any, model_tag: str, path: str) -> None:
        step = self.args.ckpt_step
        try:
            original(self, model_tag, path)
        finally:
            EFFECT.calls += 1
            EFFECT.changed += self.args.ckpt_step != step
            self.args.ckpt_step = step

    return load_other_checkpoint


PATCH = Patch(
    id="slime.checkpoint-step",
    summary="The step of the reference's checkpoint is not that of the models loaded after it",
    why=(
        "To load the reference or the teacher, slime sets ckpt_step to --ref-ckpt-step or "
        "--opd-teacher-ckpt-step, and puts it back only if --ckpt-step was set. Without --ckpt-step, the "
        "models that are loaded next, the teacher and the old actor, come from the reference's step of their "
        "own checkpoints: of an older one, or of none, which stops the job. With the patch each comes from "
        "the step that its own option names, else from the latest."
    ),
    changes=("numbers", "crashes"),
    met=(
        "--ref-ckpt-step or --opd-teacher-ckpt-step without --ckpt-step, and a model that is loaded after: "
        "the teacher of on-policy distillation, or the old actor (--keep-old-actor)."
    ),
    upstream=("THUDM/slime#2243",),
    evidence="slime's commit 68a7347 (#2243, after 0.3.1) puts ckpt_step back in the same way.",
    targets=one_target(SLIME, variant("0.2.3", replaced(_LOAD, make_load_other))),
)
