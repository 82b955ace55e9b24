"""`verl.resume-lr-schedule`: a job on Megatron goes on with its learning rate schedule where it was saved.

One setting of verl decides both whether the scheduler is loaded and whose hyper-parameters count. It is on
only while a checkpoint is loaded: the scheduler, made with it off, takes just the count of steps.
"""

from contextvars import ContextVar
from typing import Any

from overlay import log
from overlay.compat.projects import VERL
from overlay.effect import Figure, effect
from overlay.patch import Absent, Patch, around, one_target, replaced, variant

ID = "verl.resume-lr-schedule"
_MANAGER = "verl.utils.checkpoint.megatron_checkpoint_manager"
#: What loads with Megatron-FSDP.
_FSDP = f"{_MANAGER}:MegatronCheckpointManager._load_megatron_fsdp_checkpoint"
EFFECT = effect(
    __name__,
    "load",
    Figure(name="steps", says="the most steps that the schedule came back with", unit="steps", combine="max"),
    did="restored the schedule of",
    then="without it {steps} behind",
)

#: While a checkpoint is loaded that the schedule is to be restored from: what loads it.
_loading: ContextVar[Any] = ContextVar("overlay_verl_lr_schedule", default=None)


@around
def load_checkpoint(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Load the scheduler with the optimizer and `extra`, of which it is by verl's page on checkpoints."""
    scheduler = self.lr_scheduler
    has_steps = hasattr(scheduler, "num_steps")
    if self.use_checkpoint_opt_param_scheduler or not self.should_load_extra or not has_steps:
        return original(self, *args, **kwargs)
    load = scheduler.load_state_dict

    def load_state_dict(state: Any) -> None:
        # The count in the checkpoint is added to that of the scheduler.
        scheduler.num_steps = 0
        load(state)
        EFFECT.changed += scheduler.num_steps > 0
        EFFECT.steps = max(EFFECT.steps, scheduler.num_steps)

    scheduler.load_state_dict = load_state_dict
    token = _loading.set(self)
    self.use_checkpoint_opt_param_scheduler = True
    try:
        return original(self, *args, **kwargs)
    finally:
        self.use_checkpoint_opt_param_scheduler = False
        _loading.reset(token)
        del scheduler.load_state_dict
        EFFECT.calls += 1


@around
def load_state(original: Any, sharded_state_dict: Any, ckpt_dir: Any) -> Any:
    """Load a checkpoint that has no scheduler without it, as verl does alone."""
    found, manager = original(sharded_state_dict, ckpt_dir), _loading.get()
    if manager is not None and "optimizer" in found and "lr_scheduler" not in found:
        manager.use_checkpoint_opt_param_scheduler = False
        log.warning(f"{ID}: {ckpt_dir} has no learning rate schedule, so it starts at its first step")
    return found


#: What is replaced, and what keeps the scheduler's hyper-parameters when the setting is off.
_PARTS = (
    replaced(f"{_MANAGER}:MegatronCheckpointManager.load_checkpoint", load_checkpoint),
    replaced(f"{_MANAGER}:load_dist_checkpointing", load_state),
    "verl.utils.megatron.dist_checkpointing:load_dist_checkpointing",
    "verl.utils.megatron.optimizer:get_megatron_optimizer_param_scheduler",
)

PATCH = Patch(
    id=ID,
    summary="A resumed job on Megatron goes on with its learning rate schedule",
    why="verl's Megatron checkpoints hold the learning rate scheduler, but loading one leaves it out unless "
    "use_checkpoint_opt_param_scheduler is set, which is off by default: each resume silently starts warm-up "
    "and decay anew, where verl's FSDP backend restores the schedule. With the patch the count of steps is "
    "restored where the optimizer and `extra` are loaded; warm-up, decay and total stay those of the "
    "configuration, so a job that is extended goes on at its step of the longer schedule. The learning rate "
    "of a resumed job changes, unless it is constant without warm-up, as is verl's default. Megatron-Core "
    "takes the peak and the least rate from the optimizer that is loaded, with the patch or without.",
    opt_in=True,
    evidence="verl's page on checkpoints says that their contents, the learning rate schedule among them, "
    "mean the same on FSDP and Megatron, and FSDP restores it. By its page of settings the scheduler is "
    "loaded if use_checkpoint_opt_param_scheduler is set: without it, a job may want a new schedule.",
    changes=("numbers",),
    met="A resume on Megatron that loads the optimizer and extra without use_checkpoint_opt_param_scheduler, "
    "of a learning rate that is not constant.",
    upstream=("verl-project/verl#7953", "verl-project/verl#7954"),
    targets=one_target(VERL, variant("0.8", *_PARTS, _FSDP), variant("0.6", *_PARTS, Absent(site=_FSDP))),
)
