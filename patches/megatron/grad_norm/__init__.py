"""`megatron.grad-norm`: each element of the model counts once in the norm of the gradient.

Megatron tells by a mark of Transformer Engine's whether another tensor parallel rank has the same elements.
Every optimizer begins with one of two functions. There the marks are put right by the names of the modules'
classes, before optimizers copy them to their shards.
"""

from typing import Any

from overlay.compat.projects import MEGATRON
from overlay.effect import effect
from overlay.patch import Patch, around, one_target, replaced, variant

_GROUPS = "megatron.core.optimizer:_get_param_groups"
#: All optimizers but Muon begin with this one. It calls the other, which ms-swift replaces at times.
_BUFFERS = f"{_GROUPS}_and_buffers"
#: The attribute that tells Megatron whether other ranks have the same elements.
_MARK = "tensor_model_parallel"
_SPLIT = {"TEColumnParallelLinear", "TERowParallelLinear"}
EFFECT = effect(__name__, "parameter", did="marked otherwise", always=True)


@around
def marked(original: Any, model_chunks: Any, *args: Any, **kwargs: Any) -> Any:
    """Mark all modules of a model before its optimizer is built."""
    for chunk in model_chunks:
        for module in chunk.modules():
            own = [*module.parameters(recurse=False)]
            before = [bool(getattr(one, _MARK, False)) for one in own]
            mark(module)
            EFFECT.changed += sum(
                bool(getattr(one, _MARK, False)) != was for one, was in zip(own, before, strict=True)
            )
    return original(model_chunks, *args, **kwargs)


def mark(module: Any) -> None:
    """Mark those parameters of one module of which no other rank of the norm's group has the same elements.

    Megatron-FSDP's parameters are left as they are: it reads the marks for its own purposes.
    """
    names = {one.__name__ for one in type(module).__mro__}
    own = {
        name: parameter
        for name, parameter in module.named_parameters(recurse=False)
        if not getattr(parameter, "__fsdp_param__", False)
    }
    experts = {name: one for name, one in own.items() if not getattr(one, "allreduce", True)}
    if "TEGroupedLinear" in names:
        _mark_experts(own, row="TERowParallelGroupedLinear" in names, size=_parts_of_experts(module))
    elif "TELinear" in names and not names & _SPLIT and module.parallel_mode is None:
        # Its whole weight is on each rank: Transformer Engine marks it anyway.
        for parameter in own.values():
            if getattr(parameter, "allreduce", True):
                parameter.tensor_model_parallel = False
    elif experts and _parts_of_experts(module) == 1:
        for parameter in experts.values():  # the second bias of an expert, which Megatron takes for whole
            _mark_split(parameter, 0)
    if "softmax_offset" in own:  # one for each head, of which a rank has its own
        _mark_split(own["softmax_offset"], 0)


def _parts_of_experts(module: Any) -> int:
    """Return over how many ranks each expert is split, 0 if a module that is not Megatron's does not tell."""
    config = getattr(module, "config", None)
    size = getattr(config, "expert_tensor_parallel_size", None)
    return int(getattr(config, "tensor_model_parallel_size", 0) if size is None else size)


def _mark_experts(own: dict[str, Any], *, row: bool, size: int) -> None:
    """Mark weights and biases of experts that are each split over `size` ranks, by row or by column."""
    for name, parameter in own.items():
        kind = name.rstrip("0123456789")
        if kind not in ("weight", "bias"):
            continue
        split = size > 1 and not (row and kind == "bias")
        # Whole experts, in groups of their own: no two ranks of the norm's group have the same one.
        whole = size == 1 and not getattr(parameter, "allreduce", True)
        if split or whole:
            _mark_split(parameter, 1 if row and kind == "weight" else 0)


def _mark_split(parameter: Any, dim: int) -> None:
    """Mark a parameter as split along a dimension, by which others join the parts, unless it is marked."""
    if not getattr(parameter, _MARK, False):
        parameter.tensor_model_parallel, parameter.partition_dim, parameter.partition_stride = True, dim, 1


PATCH = Patch(
    id="megatron.grad-norm",
    summary="The gradient norm counts experts, replicated weights and attention sinks exactly once",
    why="With tensor parallelism Megatron counts an unmarked parameter on the first rank only, and a marked "
    "one on all. Since Transformer Engine 2.13 grouped experts are unmarked: (TP-1)/TP of their gradients is "
    "missing from the norm, and gradients are clipped too weakly. The second biases of other experts never "
    "had a mark. Up to Megatron 0.16 replicated weights, as the down projections of multi-latent attention, "
    "count TP times. Attention sinks have never been marked. With the patch the marks are right, and the "
    "norm of a running job changes. slime gathers experts by the same marks to send them to SGLang.",
    changes=("numbers",),
    met="Tensor parallelism, with grouped experts on Transformer Engine 2.13 or later, or experts with "
    "biases (Megatron before 0.19), multi-latent attention (Megatron before 0.17) or softmax_type=learnable "
    "(any).",
    evidence="megatron-core 0.19 marks experts the same way, and 0.17 leaves weights that are not split "
    "unmarked. Norm and update are compared with the whole model's in float64, those of attention sinks too.",
    upstream=(
        "NVIDIA/Megatron-LM#5916",
        "NVIDIA/Megatron-LM#3213",
        "NVIDIA/Megatron-LM#7530",
        "NVIDIA/Megatron-LM#7452",
    ),
    targets=one_target(MEGATRON, variant("0.12", replaced(_GROUPS, marked), replaced(_BUFFERS, marked))),
)
