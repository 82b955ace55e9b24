"""`slime.grads-once`: a step unscales its gradients once, and survives those that overflow."""

from typing import Any

from overlay.compat.projects import SLIME
from overlay.effect import effect
from overlay.patch import Patch, around, one_target, replaced, variant

_STEP = "slime.backends.megatron_utils.model:train_one_step"
#: Of the optimizer, for the time of a step.
_OVERLAID = ("prepare_grads", "get_grad_norm", "step")
EFFECT = effect(__name__, "step", did="unscaled gradients once in")


@around
def train_one_step(original: Any, *given: Any, **named: Any) -> Any:
    """Take a step in which the optimizer prepares its gradients the first time that it is asked to."""
    optimizer = named["optimizer"] if "optimizer" in named else given[5]
    prepare, norm, step = optimizer.prepare_grads, optimizer.get_grad_norm, optimizer.step
    found: list[bool] = []
    stepping: list[bool] = []
    over: list[bool] = []

    def prepare_grads() -> bool:
        if over:
            return bool(prepare())
        if not found:
            found.append(bool(prepare()))
        elif found[0] or optimizer.get_loss_scale() != 1:  # in bf16 there is nothing to unscale
            EFFECT.changed += 1
        # slime itself is told of an overflow by the norm, for which it has no value otherwise.
        return found[0] and bool(stepping)

    def get_grad_norm() -> Any:
        return float("nan") if any(found) and not over else norm()

    def take_step() -> Any:
        stepping.append(True)
        return step()

    EFFECT.calls += 1
    # What somebody else has put in front of the class.
    before = {name: value for name, value in vars(optimizer).items() if name in _OVERLAID}
    ours = dict(zip(_OVERLAID, (prepare_grads, get_grad_norm, take_step), strict=True))
    vars(optimizer).update(ours)
    try:
        return original(*given, **named)
    finally:
        over.append(True)  # a user's hook may have put something around them, which stays
        for name, value in ours.items():
            if vars(optimizer).get(name) is value:
                delattr(optimizer, name)
                vars(optimizer).update({one: before[one] for one in before if one == name})


PATCH = Patch(
    id="slime.grads-once",
    summary="With --fp16 gradients are unscaled once, and a step that overflows is skipped",
    why="Where slime looks for overflows, it lets the optimizer prepare the gradients, and then once more as "
    "it steps: with --fp16 they are divided by the scale of the loss twice. All but a 65,536th of the "
    "gradient is lost, clipping never clips, and the scale grows twice as fast. Before 0.3.0, a step that "
    "overflows ends in UnboundLocalError. With the patch they are prepared once. An --fp16 job that began "
    "without it has moments of Adam that are too small: resume with --no-load-optim.",
    changes=("numbers", "crashes"),
    met="--fp16, or --no-check-for-nan-in-loss-and-grad with --loss-scale.",
    upstream=("THUDM/slime#1842", "THUDM/slime#1762"),
    evidence="A step of SGD and the norm of its gradient are those of float64; slime 0.3.0 skips an overflow "
    "in the same way.",
    targets=one_target(SLIME, variant("0.1 to 0.3", replaced(_STEP, train_one_step))),
)
