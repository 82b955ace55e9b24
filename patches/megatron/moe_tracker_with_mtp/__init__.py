"""`megatron.moe-tracker-with-mtp`: pipeline stages without experts add up as many losses as the others."""

from inspect import signature
from typing import Any

from overlay.compat.projects import MEGATRON
from overlay.effect import effect
from overlay.patch import Patch, around, one_target, replaced, variant

_UTILS = "megatron.core.transformer.moe.moe_utils"
EFFECT = effect(__name__, "loss", did="made room for the layers of multi-token prediction in", always=True)


@around
def track(original: Any, *args: Any, **named: Any) -> Any:
    """Make the entries that upstream makes too short, which is the case on ranks that have computed none."""
    import torch
    from megatron.core.transformer.moe.moe_utils import get_moe_layer_wise_logging_tracker

    given = signature(original).bind(*args, **named).arguments
    extra, tracker = given.get("mtp_num_layers"), get_moe_layer_wise_logging_tracker()
    for name in given.get("track_names") or () if extra and given.get("force_initialize") else ():
        if name not in tracker:
            values = torch.zeros(given["num_layers"] + extra, device="cuda")
            tracker[name] = {"values": values, "reduce_group": None, "avg_group": None}
            EFFECT.changed += 1
    return original(*args, **named)


PATCH = Patch(
    id="megatron.moe-tracker-with-mtp",
    summary="Pipeline stages without experts take part in the report of auxiliary losses under MTP",
    why="Before it logs the auxiliary losses of routers, Megatron adds them up over pipeline stages. With "
    "multi-token prediction a stage without experts has fewer entries than the others, and the sum hangs or "
    "ends in an error. With the patch it has as many.",
    changes=("hangs",),
    met="Experts with mtp_num_layers and pipeline parallelism, where a stage has no experts.",
    upstream=("NVIDIA/Megatron-LM#3401",),
    evidence="megatron-core 0.17 makes as many entries (NVIDIA/Megatron-LM#3401).",
    targets=one_target(
        MEGATRON,
        variant(
            "0.14",
            replaced(f"{_UTILS}:track_moe_metrics", track),
            f"{_UTILS}:get_moe_layer_wise_logging_tracker",
        ),
    ),
)
