"""`megatron.gated-norm-over-tp`: the norm of a gated delta net has its whole gradient on each rank."""

import functools
from types import SimpleNamespace
from typing import Any

from overlay.compat.projects import MEGATRON
from overlay.effect import effect
from overlay.patch import Absent, Calls, Patch, Present, around, one_target, replaced, variant

_FINALIZE = "megatron.core.distributed.finalize_model_grads:finalize_model_grads"
_NAME = "_allreduce_non_tensor_model_parallel_grads"
_ALLREDUCE = f"megatron.core.distributed.finalize_model_grads:{_NAME}"
_LAYER = "megatron.core.ssm.gated_delta_net"
#: From 0.3.0 on slime puts a function of its own there as it starts, which leaves these norms out as well.
#: Wrapped is slime's then: a job without slime, where slime is installed, keeps Megatron's as it is.
_SLIMES = "slime.backends.megatron_utils.megatron_patch.megatron_chunked_grad_coalesce_patch"
_FACTS = (Calls(site=_FINALIZE, callee=_NAME), Present(site=_LAYER))
EFFECT = effect(__name__, "gradient of a norm", did="summed over tensor parallel ranks", always=True)


def _norms(chunk: Any) -> list[tuple[str, Any]]:
    """Return the parameters of these norms, under a name of those that are summed without conditions."""
    found = [
        (f"{number}.k_layernorm", parameter)
        for number, layer in enumerate(chunk.modules())
        if any(one.__module__.startswith(_LAYER) for one in type(layer).__mro__)
        for parameter in layer.out_norm.parameters()
    ]
    EFFECT.changed += len(found)
    return found


@around
def allreduce(original: Any, model: Any, config: Any, *group: Any, **named: Any) -> None:
    """Sum gradients over tensor parallel ranks, and then those of these norms, by upstream's own means."""
    original(model, config, *group, **named)
    # With sequence parallelism they are marked, and have been summed.
    if config.sequence_parallel:
        return
    shown = [
        SimpleNamespace(ddp_config=chunk.ddp_config, named_parameters=functools.partial(_norms, chunk))
        for chunk in model
    ]
    original(shown, SimpleNamespace(sequence_parallel=False, qk_layernorm=True), *group, **named)


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
        variant("slime's own", replaced(f"{_SLIMES}:{_NAME}", allreduce), _ALLREDUCE, *_FACTS),
        variant("0.16", replaced(_ALLREDUCE, allreduce), *_FACTS, Absent(site=_SLIMES)),
        tells=(_LAYER,),
    ),
)
