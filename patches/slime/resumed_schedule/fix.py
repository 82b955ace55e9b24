"""What leaves the learning rate's schedule where the checkpoint had it."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any


def make_initialize(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build what makes model and optimizer and loads them: slime's own, and the schedule put back."""
    from overlay.patches._rebound import rebound
    from overlay.patches.slime.resumed_schedule.effect import EFFECT

    def initialize_model_and_optimizer(args: Any, role: str = "actor") -> Any:
        restored: list[int] = []

        def load_checkpoint(model: Any, optimizer: Any, scheduler: Any, *rest: Any, **options: Any) -> Any:
            """Load it, and note the samples after which the schedule stands."""
            loaded = module.load_checkpoint(model, optimizer, scheduler, *rest, **options)
            restored.append(scheduler.num_steps)
            return loaded

        own = rebound(original, module, load_checkpoint=load_checkpoint)
        model, optimizer, scheduler, iteration = own(args, role)
        EFFECT.calls += len(restored)
        # Where the checkpoint says nothing of the schedule, it starts where slime says.
        if restored and restored[-1] > 0 and scheduler.num_steps != restored[-1]:
            EFFECT.changed += 1
            EFFECT.off = max(EFFECT.off, abs(restored[-1] - scheduler.num_steps))
            scheduler.num_steps = restored[-1]
            scheduler.step(increment=0)
        return model, optimizer, scheduler, iteration

    return initialize_model_and_optimizer
