"""`megatron.resumed-weight-decay`: the first step after a resume has the weight decay of the checkpoint.

Loading advances the schedule before it has read the fields of the weight decay. The method is wrapped, and
the schedule applied once more, by no step, when all of them are there.
"""

from __future__ import annotations

from overlay.compat.projects import MEGATRON
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches.megatron.resumed_weight_decay.fix import make_load

_SCHEDULER = "megatron.core.optimizer_param_scheduler:OptimizerParamScheduler"
_LOAD = f"{_SCHEDULER}.load_state_dict"
#: Called with no step. A digest, as all that is relied on is in it.
_STEP = f"{_SCHEDULER}.step"

PATCH = Patch(
    id="megatron.resumed-weight-decay",
    summary="The first step after a resume has the weight decay of the checkpoint",
    why=(
        "Megatron's scheduler, when it is loaded, sets the learning rate and the weight decay of all "
        "parameter groups before it reads the weight decay, its growth and its steps from the checkpoint. "
        "The first optimizer step after a resume decays the weights by what the new command line would "
        "have at that step, and only from the second on by what the checkpoint says. With the patch the "
        "first does too. The learning rate is right either way."
    ),
    changes=("numbers",),
    met=(
        "A job that is resumed with --use-checkpoint-opt-param-scheduler (the default of the class, not of "
        "Megatron's arguments) and another weight decay, or another schedule of it, than it was saved "
        "with."
    ),
    evidence=(
        "Upstream's dev branch reads all fields before it applies the schedule (NVIDIA/Megatron-LM#5213). "
        "What is resumed is compared with what was saved."
    ),
    upstream=("NVIDIA/Megatron-LM#5213", "NVIDIA-NeMo/Automodel#3883"),
    targets=one_target(
        MEGATRON,
        variant(
            "0.12",
            replaced(_LOAD, make_load),
            _STEP,
        ),
    ),
)
