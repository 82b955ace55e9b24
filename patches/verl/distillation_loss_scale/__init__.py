"""`verl.distillation-loss-scale`: micro-batches of a distillation are divided by the tokens of their batch.

A loss of verl 0.8 reads from the configuration of the actor what the whole batch comes to, and the loss of
the policy writes it there. The loss of a distillation reads it too, and is computed first. So the numbers
are written before it is.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from overlay.compat.projects import VERL
from overlay.effect import effect
from overlay.patch import Patch, one_target, replaced, variant

_LOSSES = "verl.trainer.distillation.losses"
_LOSS = f"{_LOSSES}:distillation_loss"
EFFECT = effect(__name__, "micro-batch", did="corrected the numbers of")


def make_distillation_loss(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build `distillation_loss`: the original, once the configuration has the numbers of this very batch."""

    def distillation_loss(config: Any, distillation_config: Any, model_output: Any, data: Any) -> Any:
        EFFECT.calls += 1
        EFFECT.changed += _is_other(config.global_batch_info, data)
        # What `ppo_loss` writes there as well, which is called afterwards.
        for name in ("dp_size", "batch_num_tokens", "global_batch_size"):
            config.global_batch_info[name] = data[name]
        config.global_batch_info["loss_scale_factor"] = config.loss_scale_factor
        return original(config, distillation_config, model_output, data)

    return distillation_loss


def _is_other(told: Any, data: Any) -> bool:
    """Return whether numbers of the batch are none of those that were told. Tensors are not looked into."""
    names = ("dp_size", "batch_num_tokens", "global_batch_size")
    pairs = [(told.get(name), data[name]) for name in names]
    return any(old is None or (type(old) is type(new) is int and old != new) for old, new in pairs)


PATCH = Patch(
    id="verl.distillation-loss-scale",
    summary="A distillation divides each micro-batch by the tokens of its own batch",
    why=(
        "verl 0.8 computes the loss of a distillation before it has noted how many tokens the batch has."
        " The first micro-batch of each mini-batch is divided by the tokens of the mini-batch before, "
        "and the very first one by its own alone, whatever data parallelism divides by. So the gradient "
        "depends on how the batch is cut, and where a mini-batch is one micro-batch, all of it is of the"
        " wrong size. Between releases, where nothing but a distillation is trained, each micro-batch is"
        " divided by its own tokens. With the patch the numbers of the batch are noted first, as in verl"
        " 0.9."
    ),
    evidence=(
        "verl 0.9.0 writes the numbers of the batch before the loss reads them (#7225). The contract "
        "compares gradients with one process in float64, and holds on 0.9.1 without the patch."
    ),
    changes=("numbers",),
    met="distillation.enabled=True.",
    upstream=("verl-project/verl#7225", "verl-project/verl#7200"),
    targets=one_target(VERL, variant("0.8", replaced(_LOSS, make_distillation_loss)), tells=(_LOSSES,)),
)
