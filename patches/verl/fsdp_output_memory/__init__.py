"""`verl.fsdp-output-memory`: a micro-batch whose gradient is there leaves nothing else on the device."""

from typing import Any

from overlay.compat.projects import VERL
from overlay.effect import effect
from overlay.patch import Patch, one_target, replaced, variant

_ENGINE = "verl.workers.engine.fsdp.transformer_impl"
EFFECT = effect(__name__, "micro-batch", did="detached the outputs of", always=True)


def make_forward_step(original: Any, module: Any) -> Any:
    """Detach the outputs beside the loss, and in training drop them: there verl collects them for nobody."""
    import torch

    def forward_step(self: Any, micro_batch: Any, loss_function: Any, forward_only: bool) -> Any:
        loss, output = original(self, micro_batch, loss_function, forward_only)
        step, loop = type(self).forward_step, type(self).forward_backward_batch
        # A job's own step or loop may have use for outputs, and for their graph. VeOmni's loop is verl's.
        own = step is not module.FSDPEngineWithLMHead.forward_step
        if own or not loop.__module__.startswith("verl."):
            return loss, output
        EFFECT.changed += 1
        outputs = output["model_output"]
        detached = {name: value.detach() for name, value in outputs.items() if torch.is_tensor(value)}
        output["model_output"] = {**outputs, **detached}
        if torch.is_tensor(output["loss"]):  # until 0.6
            output["loss"] = output["loss"].detach()
        # VeOmni's loop has use for them.
        if not forward_only and loop is module.FSDPEngine.forward_backward_batch:
            del output["model_output"]
        return loss, output

    return forward_step


PATCH = Patch(
    id="verl.fsdp-output-memory",
    summary="FSDP: no micro-batch leaves its outputs and its graph on the device",
    why="verl's FSDP engine keeps the outputs of each micro-batch, with the graph that made them, until the "
    "whole mini-batch is done, and in training nobody reads them. Memory grows with the number of "
    "micro-batches, with LoRA and gradient checkpointing by the embedding of each token, until the update "
    "runs out of it. With the patch, as in verl 0.9, outputs are detached, and in training dropped. Losses, "
    "gradients and outputs stay the same. An engine of your own with another step or loop is left alone.",
    evidence="verl 0.9.0 detaches outputs too (#6699, #6984). Losses and gradients are float64's.",
    changes=("memory",),
    met="Training with verl's FSDP engine and more than one micro-batch in a mini-batch.",
    upstream=("verl-project/verl#6699", "verl-project/verl#6984"),
    targets=one_target(
        VERL,
        variant(
            "0.6 to 0.8",
            replaced(f"{_ENGINE}:FSDPEngineWithLMHead.forward_step", make_forward_step),
            f"{_ENGINE}:FSDPEngine.forward_backward_batch",
            "verl.workers.engine.utils:postprocess_batch_func",
        ),
        tells=(_ENGINE,),
    ),
)
