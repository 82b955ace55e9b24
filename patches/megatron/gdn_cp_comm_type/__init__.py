"""`megatron.gdn-cp-comm-type`: a gated delta net is built under context parallelism."""

from functools import wraps
from inspect import Parameter, signature
from typing import Any

from overlay.compat.projects import MEGATRON
from overlay.effect import effect
from overlay.patch import Patch, Present, one_target, replaced, variant

_LAYER = "megatron.core.ssm.gated_delta_net:GatedDeltaNet"
EFFECT = effect(__name__, "gated delta net", did="built", always=True)


def make_init(original: Any, _module: Any) -> Any:
    """Build the layer without the type, which is of the exchange of keys and values: it has none."""

    @wraps(original)
    def init(self: Any, *args: Any, cp_comm_type: Any = None, **named: Any) -> None:
        EFFECT.changed += cp_comm_type is not None
        original(self, *args, **named)

    given = signature(original)
    keyword = Parameter("cp_comm_type", Parameter.KEYWORD_ONLY, default=None)
    vars(init)["__signature__"] = given.replace(parameters=[*given.parameters.values(), keyword])
    return init


PATCH = Patch(
    id="megatron.gdn-cp-comm-type",
    summary="Gated delta nets can be built with context parallelism",
    why="Under context parallelism Megatron hands its attention layers the type of their communication, and "
    "a gated delta net (Qwen3-Next, Qwen3.5) does not take it: the job ends at its start with a TypeError. "
    "The layer has no use for it. With the patch it takes and ignores it.",
    changes=("crashes",),
    met="Gated delta nets with context parallelism and cp_comm_type, which Megatron's own arguments always "
    "set.",
    upstream=("NVIDIA/Megatron-LM#4374",),
    evidence="megatron-core 0.19 takes it and ignores it (NVIDIA/Megatron-LM#4374). On two context parallel "
    "ranks the layer's output and gradients are those of one process.",
    targets=one_target(
        MEGATRON,
        variant(
            "0.18",
            replaced(f"{_LAYER}.__init__", make_init, adds=("cp_comm_type",)),
            Present(site="megatron.core.ssm.gated_delta_net:tensor_a2a_cp2hp"),
        ),
        tells=("megatron.core.ssm.gated_delta_net.common:_GDNBase.__init__",),
    ),
)
