"""`megatron.resumed-weight-decay`: the first step after a resume has the weight decay of the checkpoint."""

from typing import Any

from overlay.compat.projects import MEGATRON
from overlay.effect import effect
from overlay.patch import Patch, around, one_target, replaced, variant

_SCHEDULER = "megatron.core.optimizer_param_scheduler:OptimizerParamScheduler"
EFFECT = effect(__name__, "load", did="set the weight decay after")


@around
def load(original: Any, self: Any, state_dict: dict[str, Any]) -> Any:
    """Apply the schedule once more, by no step: loading does so before it has read the weight decay."""
    loaded = original(self, state_dict)
    groups = getattr(self.optimizer, "param_groups", ())
    before = [group.get("weight_decay") for group in groups]
    self.step(increment=0)
    EFFECT.calls += 1
    EFFECT.changed += before != [group.get("weight_decay") for group in groups]
    return loaded


PATCH = Patch(
    id="megatron.resumed-weight-decay",
    summary="The first step after a resume has the weight decay of the checkpoint",
    why="Megatron's scheduler applies its schedule to all parameter groups before it has read the weight "
    "decay from the checkpoint. The first optimizer step after a resume decays by what the new command line "
    "says, and only the later ones by what was saved. The learning rate is right either way.",
    changes=("numbers",),
    met="A job that is resumed with --use-checkpoint-opt-param-scheduler (the default of the class, not of "
    "Megatron's arguments) and another weight decay, or schedule of it, than it was saved with.",
    evidence="Upstream's dev branch reads all fields first (NVIDIA/Megatron-LM#5213).",
    upstream=("NVIDIA/Megatron-LM#5213", "NVIDIA-NeMo/Automodel#3883"),
    targets=one_target(
        MEGATRON, variant("0.12", replaced(f"{_SCHEDULER}.load_state_dict", load), f"{_SCHEDULER}.step")
    ),
)
