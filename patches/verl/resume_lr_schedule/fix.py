"""What makes verl's Megatron checkpoints restore how far the learning rate schedule has come."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from types import ModuleType
from typing import Any

ID = "verl.resume-lr-schedule"

#: While a checkpoint is loaded that the schedule is to be restored from: what loads it.
_loading: ContextVar[Any] = ContextVar("overlay_verl_lr_schedule", default=None)


def make_load_checkpoint(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap `load_checkpoint`: the scheduler is loaded with the optimizer, as if the settings asked for it.

    The scheduler was made without them, so it takes the count of steps from the checkpoint and nothing else.
    A job that does not load `extra`, to which verl's page on checkpoints counts the schedule, starts it anew.
    """
    from overlay.patches.verl.resume_lr_schedule.effect import EFFECT

    def load_checkpoint(
        self: Any, local_path: Any, hdfs_path: Any = None, del_local_after_load: bool = False
    ) -> Any:
        scheduler = self.lr_scheduler
        has_steps = hasattr(scheduler, "num_steps")
        if self.use_checkpoint_opt_param_scheduler or not self.should_load_extra or not has_steps:
            return original(self, local_path, hdfs_path, del_local_after_load)
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
            return original(self, local_path, hdfs_path, del_local_after_load)
        finally:
            self.use_checkpoint_opt_param_scheduler = False
            _loading.reset(token)
            del scheduler.load_state_dict
            EFFECT.calls += 1

    return load_checkpoint


def make_load_state(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap what reads a checkpoint: one that has no scheduler is loaded without it, as verl does alone."""
    from overlay import log

    def load_dist_checkpointing(sharded_state_dict: Any, ckpt_dir: Any) -> Any:
        found, manager = original(sharded_state_dict, ckpt_dir), _loading.get()
        if manager is not None and "optimizer" in found and "lr_scheduler" not in found:
            manager.use_checkpoint_opt_param_scheduler = False
            log.warning(f"{ID}: {ckpt_dir} has no learning rate schedule, so it starts at its first step")
        return found

    return load_dist_checkpointing
