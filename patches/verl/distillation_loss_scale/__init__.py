"""`verl.distillation-loss-scale`: each micro-batch is divided by the tokens of its own batch."""

from typing import Any

from overlay.compat.projects import VERL
from overlay.effect import effect
from overlay.patch import Patch, around, one_target, replaced, variant

_LOSSES = "verl.trainer.distillation.losses"
_NAMES = ("dp_size", "batch_num_tokens", "global_batch_size")
EFFECT = effect(__name__, "micro-batch", did="corrected the numbers of")


@around
def distillation_loss(
    original: Any, config: Any, distillation_config: Any, model_output: Any, data: Any
) -> Any:
    """Note what `ppo_loss` will note later, and call the original."""
    known, told = config.global_batch_info, {name: data[name] for name in _NAMES}
    EFFECT.calls += 1
    # Tensors are not looked into.
    EFFECT.changed += any(
        name not in known or (type(known[name]) is type(new) is int and known[name] != new)
        for name, new in told.items()
    )
    known.update(told, loss_scale_factor=config.loss_scale_factor)
    return original(config, distillation_config, model_output, data)


PATCH = Patch(
    id="verl.distillation-loss-scale",
    summary="A distillation divides each micro-batch by the tokens of its own batch",
    why="verl 0.8 computes the loss of a distillation before it has noted how many tokens the batch has. The "
    "first micro-batch of each mini-batch is divided by the tokens of the mini-batch before, and the very "
    "first one by its own, so the gradient depends on how the batch is cut. With the patch the numbers of "
    "the batch are noted first, as in verl 0.9.",
    evidence="verl 0.9.0 notes the numbers of the batch first too (#7225). Gradients are float64's.",
    changes=("numbers",),
    met="distillation.enabled=True.",
    upstream=("verl-project/verl#7225", "verl-project/verl#7200"),
    targets=one_target(
        VERL,
        variant("0.8", replaced(f"{_LOSSES}:distillation_loss", distillation_loss)),
        tells=(_LOSSES,),
    ),
)
