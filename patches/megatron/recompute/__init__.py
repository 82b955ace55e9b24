"""`megatron.recompute`: let go of a checkpoint's input once it has been recomputed, and of nothing else.

What keeps it, measured on megatron-core 0.12 to 0.19: the recomputed forward leaves tensors with a graph in
attributes of modules, for one `token_dispatcher.probs` of each MoE layer, which live until the next forward
overwrites them. That graph ends in the `AccumulateGrad` node of the detached input, which holds the input
and, in its `.grad`, the gradient. Nothing of it is a reference cycle.

So the stock backward is called as it is, and afterwards each detached input gives up its gradient and its
reference to the storage. That touches one tensor object which only autograd still knows. The storage is
never resized: whatever else uses it, such as the tensor of which multi-token prediction got a view, keeps it.
"""

from __future__ import annotations

from overlay.compat.projects import MEGATRON, VERL
from overlay.patch import Patch, Target, replaced, variant
from overlay.patches.megatron.recompute.fix import make_backward, make_graphed_backward, make_verl_patch

_BACKWARD = "megatron.core.tensor_parallel.random:CheckpointFunction.backward"
_CAPTURING = "megatron.core.transformer.cuda_graphs:is_graph_capturing"
_VERL_PATCH = "verl.models.mcore.patch:apply_patch_megatron_recomputation_backward"

PATCH = Patch(
    id="megatron.recompute",
    summary="Release a recomputed layer's input after its backward, without touching its aliases",
    why=(
        "With full recomputation of MoE layers, the input of every layer and its gradient stay in memory "
        "after the backward pass: an attribute that the recomputed forward set (token_dispatcher.probs) "
        "keeps the graph, and with it the detached input. verl frees their storage by force instead, which "
        "corrupts every alias of it (the output of the decoder under multi-token prediction, captured hidden "
        "states, delayed weight gradients), copies each gradient and loses Megatron's checkpointing flags. "
        "With the patch Megatron's own backward runs, and the detached inputs then drop their references, "
        "unless something else still uses them."
    ),
    changes=("memory",),
    met=(
        "Full recomputation of MoE layers: recompute_granularity=full. "
        "No number changes where memory was not aliased."
    ),
    evidence=(
        "Gradients and flags are compared, to the bit, with Megatron's own backward, which runs "
        "unchanged; only references are dropped afterwards."
    ),
    upstream=(
        "NVIDIA/Megatron-LM#3221",
        "NVIDIA/Megatron-LM#3267",
        "NVIDIA/Megatron-LM#5197",
        "verl-project/verl#5251",
        "verl-project/verl#7328",
    ),
    targets=(
        Target(
            project=MEGATRON,
            variants=(
                variant("0.12", replaced(_BACKWARD, make_backward)),
                variant(
                    "after 0.19",
                    replaced(_BACKWARD, make_graphed_backward),
                    _CAPTURING,
                ),
            ),
        ),
        Target(
            project=VERL,
            optional=True,
            variants=(
                variant("0.8", replaced(_VERL_PATCH, make_verl_patch)),
                variant(
                    "0.9",
                    replaced(_VERL_PATCH, make_verl_patch),
                ),
            ),
        ),
    ),
)
