"""`verl.fsdp-output-memory`: a micro-batch leaves nothing on the device once its gradient has been computed.

The loop over micro-batches keeps what the forward step returned of each until the last one is done. That
has the graph of the micro-batch hanging on it. The forward step is asked as before, and what it returns
besides the loss is taken off the graph. In training it is not returned at all, for nobody reads it there.
"""

from __future__ import annotations

from overlay.compat.projects import VERL
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches.verl.fsdp_output_memory.fix import make_forward_step

_ENGINE = "verl.workers.engine.fsdp.transformer_impl"
_STEP = f"{_ENGINE}:FSDPEngineWithLMHead.forward_step"
_LOOP = f"{_ENGINE}:FSDPEngine.forward_backward_batch"

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
