"""`megatron.gated-norm-over-tp`: the norm of a gated delta net has its whole gradient on each rank."""

import functools
import sys
from inspect import signature
from types import SimpleNamespace
from typing import Any

from overlay.compat.projects import MEGATRON
from overlay.effect import effect
from overlay.patch import Patch, Present, around, one_target, replaced, variant

_FINALIZE = "megatron.core.distributed.finalize_model_grads:finalize_model_grads"
#: What sums gradients over tensor parallel ranks: Megatron's, or slime's, which replaces it from 0.3.0 on.
_NAME = "_allreduce_non_tensor_model_parallel_grads"
_ALLREDUCE = f"megatron.core.distributed.finalize_model_grads:{_NAME}"
_LAYER = "megatron.core.ssm.gated_delta_net"
EFFECT = effect(__name__, "gradient of a norm", did="summed over tensor parallel ranks", always=True)


def _norms(chunk: Any) -> list[tuple[str, Any]]:
    """Return the parameters of these norms, under a name of those that are summed without conditions."""
    found = [
        (f"{number}.k_layernorm", parameter)
        for number, layer in enumerate(chunk.modules())
        if any(one.__module__.startswith(_LAYER) for one in type(layer).__mro__)
        for parameter in layer.out_norm.parameters()
        if parameter.requires_grad
    ]
    EFFECT.changed += len(found)
    return found


@around
def finalize(original: Any, model: Any, *args: Any, **named: Any) -> None:
    """Finalize gradients, and then sum these norms' over tensor parallel ranks, by upstream's means."""
    from megatron.core import parallel_state
    from megatron.core.utils import get_model_config

    original(model, *args, **named)
    # With sequence parallelism they are marked, and have been summed.
    if get_model_config(model[0]).sequence_parallel:
        return
    shown = [
        SimpleNamespace(ddp_config=chunk.ddp_config, named_parameters=functools.partial(_norms, chunk))
        for chunk in model
    ]
    groups = signature(original).bind(model, *args, **named).arguments.get("pg_collection")
    group = parallel_state.get_tensor_model_parallel_group() if groups is None else groups.tp
    allreduce = getattr(sys.modules[_FINALIZE.partition(":")[0]], _NAME)
    allreduce(shown, SimpleNamespace(sequence_parallel=False, qk_layernorm=True), group)


PATCH = Patch(
    id="megatron.gated-norm-over-tp",
    summary="A gated delta net's norm gets its whole gradient even without sequence parallelism",
    why="Each tensor parallel rank has its own heads of a gated delta net, a copy of the norm behind them, "
    "and its heads' part of the norm's gradient. Megatron sums the parts only if sequence parallelism is on: "
    "without it the copies drift apart, of which a checkpoint keeps one. With the patch the parts are "
    "summed.",
    changes=("numbers",),
    met="Gated delta nets (Qwen3-Next, Qwen3.5) in Megatron's own layer, with tensor parallelism and without "
    "sequence_parallel.",
    evidence="One process of Megatron's own layer has the same gradient, and so does Megatron with sequence "
    "parallelism.",
    upstream=("NVIDIA/Megatron-LM#7452",),
    targets=one_target(
        MEGATRON,
        variant("0.16", replaced(_FINALIZE, finalize), Present(site=_ALLREDUCE), Present(site=_LAYER)),
        tells=(_LAYER,),
    ),
)
