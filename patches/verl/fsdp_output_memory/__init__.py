"""`verl.fsdp-output-memory`: a micro-batch leaves nothing on the device once its gradient has been computed.

The loop over micro-batches keeps what the forward step returned of each until the last one is done. That
has the graph of the micro-batch hanging on it. The forward step is asked as before, and what it returns
besides the loss is taken off the graph. In training it is not returned at all, for nobody reads it there.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from overlay.compat.projects import VERL
from overlay.effect import Figure, effect
from overlay.patch import Patch, one_target, replaced, variant

_ENGINE = "verl.workers.engine.fsdp.transformer_impl"
_STEP = f"{_ENGINE}:FSDPEngineWithLMHead.forward_step"
_LOOP = f"{_ENGINE}:FSDPEngine.forward_backward_batch"
EFFECT = effect(
    __name__,
    "micro-batch",
    Figure(name="outputs", says="outputs that no longer hold the graph of their micro-batch"),
    did="detached the outputs of",
    always=True,
    then="{outputs} outputs",
)


def make_forward_step(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build `forward_step`: the loss with its graph, and besides it outputs that hold on to none.

    In training the loop of verl's FSDP engine collects outputs that nobody reads: it gets none.
    """
    import torch

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


PATCH = Patch(
    id="verl.fsdp-output-memory",
    summary="FSDP: no micro-batch leaves its outputs and its graph on the device",
    why=(
        "verl's FSDP engine collects log-probabilities, entropies and values of each micro-batch until "
        "the whole mini-batch is done, with the graph that made them. In training nobody reads them: the"
        " worker throws them away. So memory grows with the number of micro-batches, by the outputs, and"
        " by what the graph holds on to, which with LoRA and gradient checkpointing is the embedding of "
        "each token. A run dies of that in its update, however small its micro-batches are. With the "
        "patch, as in verl 0.9, outputs are detached, and in training they are dropped with their "
        "micro-batch. Losses, gradients and what is computed without gradients stay the same. An "
        "engine of your own with another step or loop is left alone."
    ),
    evidence=(
        "verl 0.9.0 detaches outputs too (#6699, #6984). The contract compares losses, gradients and "
        "outputs with those of one batch in float64."
    ),
    changes=("memory",),
    met="Training with verl's FSDP engine and more than one micro-batch in a mini-batch.",
    upstream=("verl-project/verl#6699", "verl-project/verl#6984"),
    targets=one_target(
        VERL,
        variant(
            "0.6 to 0.8",
            replaced(_STEP, make_forward_step),
            _LOOP,
            "verl.workers.engine.utils:postprocess_batch_func",
        ),
        tells=(_ENGINE,),
    ),
)
