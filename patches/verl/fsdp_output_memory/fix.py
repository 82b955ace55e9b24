"""What `verl.fsdp-output-memory` puts in the place of upstream's own."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any


def make_forward_step(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build `forward_step`: the loss with its graph, and besides it outputs that hold on to none.

    In training the loop of verl's FSDP engine collects outputs that nobody reads: it gets none.
    """
    import torch

    from overlay.patches.verl.fsdp_output_memory.effect import EFFECT

    def forward_step(self: Any, micro_batch: Any, loss_function: Any, forward_only: bool) -> Any:
        loss, output = original(self, micro_batch, loss_function, forward_only)
        step, loop = type(self).forward_step, type(self).forward_backward_batch
        # A job's own step or loop may have use for outputs, and for their graph. VeOmni's loop is verl's.
        own = step is not module.FSDPEngineWithLMHead.forward_step
        if own or not loop.__module__.startswith("verl."):
            return loss, output
        EFFECT.changed += 1
        EFFECT.outputs += sum(
            torch.is_tensor(value) and value.grad_fn is not None for value in output["model_output"].values()
        )
        output["model_output"] = {
            name: value.detach() if torch.is_tensor(value) else value
            for name, value in output["model_output"].items()
        }
        if torch.is_tensor(output["loss"]):  # until 0.6
            output["loss"] = output["loss"].detach()
        # VeOmni's loop has use for them.
        if not forward_only and loop is module.FSDPEngine.forward_backward_batch:
            del output["model_output"]
        return loss, output

    return forward_step
