"""Marks parameters before an optimizer is built, so that each element counts once in the gradient's norm."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from types import ModuleType
from typing import Any

#: The attribute that tells Megatron whether other ranks have the same elements.
_MARK = "tensor_model_parallel"


def mark(module: Any) -> None:
    """Mark the parameters of one module: whether another rank of the norm's group has the same elements.

    A mark says that the rank's part is its own. What has none counts on the first tensor parallel rank alone.
    Megatron-FSDP's parameters are left as they are: it reads the marks for its own purposes.
    """
    names = {one.__name__ for one in type(module).__mro__}
    own = {
        name: parameter
        for name, parameter in module.named_parameters(recurse=False)
        if not getattr(parameter, "__fsdp_param__", False)
    }
    if "TEGroupedLinear" in names:
        _mark_experts(own, row="TERowParallelGroupedLinear" in names, size=_expert_tensor_size(module.config))
    elif _undivided(module, names):
        for parameter in own.values():
            if getattr(parameter, "allreduce", True):
                parameter.tensor_model_parallel = False
    if "softmax_offset" in own:  # one for each head, of which a rank has its own
        _mark_split(own["softmax_offset"], 0)


def _mark_split(parameter: Any, dim: int) -> None:
    """Mark a parameter as split along a dimension: others join the parts of all ranks along it.

    What is marked already keeps its dimension.
    """
    if not getattr(parameter, _MARK, False):
        parameter.tensor_model_parallel, parameter.partition_dim, parameter.partition_stride = True, dim, 1


def _undivided(module: Any, names: set[str]) -> bool:
    """Tell whether a linear layer has its whole weight on each rank: Transformer Engine marks it anyway."""
    return (
        "TELinear" in names
        and not names & {"TEColumnParallelLinear", "TERowParallelLinear"}
        and module.parallel_mode is None
    )


def _expert_tensor_size(config: Any) -> int:
    """Return over how many ranks each expert is split."""
    size = config.expert_tensor_parallel_size
    return int(config.tensor_model_parallel_size if size is None else size)


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


def make_marked(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap a function with which an optimizer begins, given the chunks of a model: it finds them marked."""
    from overlay.patches.megatron.grad_norm.effect import EFFECT

    @wraps(original)
    def marked(*args: Any, **kwargs: Any) -> Any:
        chunks: Iterable[Any] = kwargs["model_chunks"] if "model_chunks" in kwargs else args[0]
        for chunk in chunks:
            for module in chunk.modules():
                before = [(one, getattr(one, _MARK, False)) for one in module.parameters(recurse=False)]
                mark(module)
                changed = [one for one, was in before if bool(getattr(one, _MARK, False)) != bool(was)]
                EFFECT.changed += len(changed)
                EFFECT.elements += sum(one.numel() for one in changed)
        return original(*args, **kwargs)

    return marked
