"""What `verl.distillation-loss-scale` puts in the place of upstream's own."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any


def make_distillation_loss(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build `distillation_loss`: the original, once the configuration has the numbers of this very batch."""
    from overlay.patches.verl.distillation_loss_scale.effect import EFFECT

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
