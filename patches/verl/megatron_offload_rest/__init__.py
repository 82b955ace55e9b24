"""`verl.megatron-offload-rest`: offloading a model and its optimizer leaves nothing of them on the device.

verl walks the parameters of a model and two entries of an optimizer's state. Master weights that the
optimizer keeps in a third entry stay, and so do the FP8 copies of weights that Transformer Engine keeps in
its layers. The former are moved along, and the latter are dropped, for they are made again when they are
asked for.
"""

from __future__ import annotations

from overlay.compat.projects import VERL
from overlay.patch import Absent, Patch, one_target, replaced, variant
from overlay.patches.verl.megatron_offload_rest.fix import make_load_checkpoint, make_to

_HOME = "verl.workers.engine.megatron.transformer_impl"
_TO, _LOAD = f"{_HOME}:MegatronEngine.to", f"{_HOME}:MegatronEngine.load_checkpoint"
_DROP = "verl.utils.megatron_utils:_clear_te_fp8_weight_workspaces"

PATCH = Patch(
    id="verl.megatron-offload-rest",
    revision=2,
    summary="Megatron: offloading leaves neither master weights nor FP8 copies on the device",
    why=(
        "verl's Megatron engine offloads the parameters of a model and two entries of its optimizer's state. "
        "The master weights of a precision-aware optimizer are a third one, two or four bytes for each "
        "parameter, and stay on the device while the rollout needs it. So do the copies of weights in FP8 "
        "that Transformer Engine keeps in its layers, about a byte for each. With the patch, as in verl 0.9, "
        "master weights go and come with the rest of the state, and the copies are dropped: Transformer "
        "Engine makes them again in the next forward pass. No value changes. Where neither is there, nothing "
        "is done. Master weights in float16 stay: to save them, Transformer Engine needs a scale that it "
        "keeps on the device. An optimizer that is on several devices by itself is left to verl, which moves "
        "all of it, and so are verl 0.6 and the legacy workers (0.7 with use_legacy_worker_impl other than "
        "disable), which offload in many places."
    ),
    evidence=(
        "verl 0.9.0 moves master weights and drops the FP8 copies too (#6635, #6952). The contract compares "
        "each value before and after."
    ),
    changes=("memory",),
    met=(
        "Offloading with Megatron (param_offload, optimizer_offload), and use_precision_aware_optimizer or "
        "FP8 of Transformer Engine."
    ),
    upstream=("verl-project/verl#6635", "verl-project/verl#6952"),
    targets=one_target(
        VERL,
        variant(
            "0.7 and 0.8",
            replaced(_TO, make_to),
            replaced(_LOAD, make_load_checkpoint),
            Absent(site=_DROP),
        ),
        tells=(_DROP,),
    ),
)
