"""`slime.resumed-schedule`: a resumed run's learning rate goes on from where the checkpoint had it."""

from functools import wraps
from typing import Any

from overlay.compat.projects import SLIME
from overlay.effect import effect
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches._rebound import rebound

_INITIALIZE = "slime.backends.megatron_utils.model:initialize_model_and_optimizer"
EFFECT = effect(__name__, "load", did="put the schedule back after")


def make_initialize(original: Any, module: Any) -> Any:
    """Note where the schedule stands when it has been loaded, and put it back there."""

    def initialize_model_and_optimizer(*given: Any, **named: Any) -> Any:
        restored: list[int] = []

        def load_checkpoint(model: Any, optimizer: Any, scheduler: Any, *rest: Any, **options: Any) -> Any:
            loaded = module.load_checkpoint(model, optimizer, scheduler, *rest, **options)
            restored.append(scheduler.num_steps)
            return loaded

        own = rebound(original, module, load_checkpoint=load_checkpoint)
        model, optimizer, scheduler, iteration = own(*given, **named)
        EFFECT.calls += len(restored)
        # Where the checkpoint says nothing of the schedule, it starts where slime says.
        if restored and restored[-1] > 0 and scheduler.num_steps != restored[-1]:
            EFFECT.changed += 1
            scheduler.num_steps = restored[-1]
            scheduler.step(increment=0)
        return model, optimizer, scheduler, iteration

    return wraps(original)(initialize_model_and_optimizer)


PATCH = Patch(
    id="slime.resumed-schedule",
    summary="A resumed run's learning rate goes on from where the checkpoint had it",
    why="After it has loaded a checkpoint, schedule included, slime 0.2.2 and 0.2.3 advance the schedule by "
    "iteration * global_batch_size samples a second time: a run that resumes half-way goes on with the "
    "learning rate of its end, and warm-up is skipped. With the patch the schedule stays where the "
    "checkpoint had it; one that was not loaded (--no-load-optim) stands where slime puts it.",
    changes=("numbers",),
    met="A resume with its optimizer, with a learning rate or weight decay that changes.",
    upstream=("THUDM/slime#1775",),
    evidence="slime's commit f9f7b56 (in 0.2.4) takes the second advance out.",
    targets=one_target(SLIME, variant("0.2.2", replaced(_INITIALIZE, make_initialize))),
)
