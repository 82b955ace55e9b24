"""`verl.resume-lr-schedule`: a job on Megatron goes on with its learning rate schedule where it was saved.

verl saves the scheduler with the optimizer, and its code to load it is there, behind a setting that also
decides whose hyper-parameters count. So for as long as a checkpoint is loaded, the manager believes that the
setting is on. The scheduler has been made with the setting off: it keeps the hyper-parameters of the
configuration, and takes the count of steps.
"""

from __future__ import annotations

from overlay.compat.projects import VERL
from overlay.patch import Absent, Patch, one_target, replaced, variant
from overlay.patches.verl.resume_lr_schedule.fix import ID, make_load_checkpoint, make_load_state

_MANAGER = "verl.utils.checkpoint.megatron_checkpoint_manager"
_LOAD = f"{_MANAGER}:MegatronCheckpointManager.load_checkpoint"


#: What is replaced, and what keeps the scheduler's hyper-parameters when the setting is off.
_PARTS = (
    replaced(_LOAD, make_load_checkpoint),
    replaced(f"{_MANAGER}:load_dist_checkpointing", make_load_state),
    "verl.utils.megatron.dist_checkpointing:load_dist_checkpointing",
    "verl.utils.megatron.optimizer:get_megatron_optimizer_param_scheduler",
)
#: What loads with Megatron-FSDP.
_FSDP = f"{_MANAGER}:MegatronCheckpointManager._load_megatron_fsdp_checkpoint"

PATCH = Patch(
    id=ID,
    summary="A resumed job on Megatron goes on with its learning rate schedule",
    why=(
        "verl's Megatron checkpoints hold the learning rate scheduler, and loading one leaves it out unless "
        "use_checkpoint_opt_param_scheduler is set, which is off by default: each resume starts the warm-up "
        "and the decay anew, without a word. verl's FSDP backend restores the schedule. With the patch the "
        "count of steps is restored where the optimizer and `extra` are loaded; warm-up, decay and total "
        "stay those of the configuration, so a job that is extended goes on at its step of the longer "
        "schedule. (Each release of Megatron-Core takes the peak and the "
        "least rate from the groups of the optimizer that is loaded, with the patch or without.) That "
        "changes the learning rate of a job that has been resumed, unless the rate is constant and has no "
        "warm-up, as is verl's default."
    ),
    opt_in=True,
    evidence=(
        "verl's page on checkpoints says that their contents, the learning rate schedule among them, mean "
        "the same on FSDP and Megatron, and FSDP restores it. verl's page of settings says that the "
        "scheduler is loaded if use_checkpoint_opt_param_scheduler is set, whose default is False: a job "
        "that leaves it off may want a new schedule."
    ),
    changes=("numbers",),
    met=(
        "A resume on Megatron that loads the optimizer and extra without use_checkpoint_opt_param_scheduler, "
        "of a learning rate that is not constant."
    ),
    upstream=("verl-project/verl#7953", "verl-project/verl#7954"),
    targets=one_target(VERL, variant("0.8", *_PARTS, _FSDP), variant("0.6", *_PARTS, Absent(site=_FSDP))),
)
