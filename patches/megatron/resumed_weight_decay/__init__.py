"""`megatron.resumed-weight-decay`: the first step after a resume has the weight decay of the checkpoint.

Loading advances the schedule before it has read the fields of the weight decay. The method is wrapped, and
the schedule applied once more, by no step, when all of them are there.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from overlay.compat.projects import MEGATRON
from overlay.effect import Figure, effect
from overlay.patch import Patch, one_target, replaced, variant

_SCHEDULER = "megatron.core.optimizer_param_scheduler:OptimizerParamScheduler"
_LOAD = f"{_SCHEDULER}.load_state_dict"
#: Called with no step. A digest, as all that is relied on is in it.
_STEP = f"{_SCHEDULER}.step"
EFFECT = effect(
    __name__,
    "load",
    Figure(name="off", says="the most by which a weight decay would have been off", combine="max"),
    did="set the weight decay after",
    then="without it off by up to {off}",
)


def make_load(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build `load_state_dict`, which applies the schedule once all of it has been read."""

    def load_state_dict(self: Any, state_dict: dict[str, Any]) -> Any:
        loaded = original(self, state_dict)
        before = _decays(self)
        self.step(increment=0)
        off = max((abs(one - other) for one, other in zip(before, _decays(self), strict=True)), default=0.0)
        EFFECT.calls += 1
        EFFECT.changed += off > 0
        EFFECT.off = max(EFFECT.off, off)
        return loaded

    # Upstream's annotations, which are part of what callers see.
    load_state_dict.__annotations__ = dict(getattr(original, "__annotations__", {}))
    return load_state_dict


def _decays(scheduler: Any) -> list[float]:
    """Return the weight decay of each group of parameters, as far as a number says it."""
    groups = getattr(scheduler.optimizer, "param_groups", ())
    found = [group.get("weight_decay") for group in groups]
    return [one if type(one) in (int, float) else 0.0 for one in found]


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
