"""`verl.fsdp-output-memory`: a micro-batch leaves nothing on the device once its gradient has been computed.

The loop over micro-batches keeps what the forward step returned of each until the last one is done. That
has the graph of the micro-batch hanging on it. The forward step is asked as before, and what it returns
besides the loss is taken off the graph. In training it is not returned at all, for nobody reads it there.
"""

from __future__ import annotations

from overlay.compat.projects import VERL
from overlay.patch import Absent, Patch, Removal, fixed, known, not_affected, one_target, replaced, variant
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
    remove=Removal(
        version="0.9.0",
        when="the loop of the FSDP engine keeps no outputs of a micro-batch in training",
        test="tests/real/test_contracts.py::test_upstream_alone_keeps_the_contract",
    ),
    targets=one_target(
        VERL,
        variant(
            "0.6 to 0.8",
            ">=0.6.1.dev0,<0.9.0.dev0",
            # 0.6.1; 0.7.0 and 0.7.1; 0.8.0
            replaced(_STEP, make_forward_step, "8c52f845d79d", "0d30c0710be7", "be944500034b"),
            # Only relied on, but for what a digest alone says: that it reads nothing of an output
            # that it collects, but hands them to the next. 0.6.1 to 0.7.1; 0.8.0
            known(_LOOP, "ae59d25d2c7b", "4d8be6c6c354"),
            # And this, that an output without a `model_output` is one like any other.
            known("verl.workers.engine.utils:postprocess_batch_func", "c067465b78e0"),
        ),
        fixed(
            "0.9",
            ">=0.9.0.dev0",
            # 0.9.0; 0.9.1
            known(_STEP, "d260b9ea43dc", "4894d44485f7"),
            known(_LOOP, "c70da41a842f", "923f17003658"),
            reason="verl 0.9 drops the outputs of a micro-batch in training",
        ),
        not_affected(
            "without the engine",
            "<0.6.0.dev0",
            Absent(site=_ENGINE),
            reason="the FSDP engine came with verl 0.6",
        ),
    ),
)
