"""`slime.checkpoint-step`: the step of the reference's checkpoint is not that of later models."""

from typing import Any

from overlay.compat.projects import SLIME
from overlay.effect import effect
from overlay.patch import Patch, around, one_target, replaced, variant

_LOAD = "slime.backends.megatron_utils.actor:MegatronTrainRayActor.load_other_checkpoint"
EFFECT = effect(__name__, "load", did="put the step back after")


@around
def load_other(original: Any, self: Any, *given: Any, **named: Any) -> None:
    """Load another model than the actor, and restore the step of the actor's arguments, which it borrows."""
    step = self.args.ckpt_step
    try:
        original(self, *given, **named)
    finally:
        EFFECT.calls += 1
        EFFECT.changed += self.args.ckpt_step != step
        self.args.ckpt_step = step


PATCH = Patch(
    id="slime.checkpoint-step",
    summary="The step of the reference's checkpoint is not that of the models loaded after it",
    why="To load the reference or the teacher, slime sets ckpt_step to that model's step, and restores it "
    "only if --ckpt-step was set. Models loaded next then come from that step of their own checkpoints, or "
    "stop the job. With the patch each comes from the step that its own option names, else from the latest.",
    changes=("numbers", "crashes"),
    met="--ref-ckpt-step or --opd-teacher-ckpt-step without --ckpt-step, and another model loaded after it.",
    upstream=("THUDM/slime#2243",),
    evidence="slime's commit 68a7347 (after 0.3.1) puts ckpt_step back in the same way.",
    targets=one_target(SLIME, variant("0.2.3", replaced(_LOAD, load_other))),
)
