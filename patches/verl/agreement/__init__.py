"""`verl.agreement`: ranks compare their patches as soon as verl's FSDP workers have a device mesh."""

from typing import Any

import overlay
from overlay.compat import agreement
from overlay.compat.projects import VERL
from overlay.effect import effect
from overlay.patch import Calls, Patch, around, one_target, replaced, variant

_ENGINE, _WORKERS = "verl.workers.engine.fsdp", "verl.workers.fsdp_workers"
_MESH = "create_device_mesh"
EFFECT = effect(__name__, "comparison", did="made", always=True)


@around
def compare(original: Any, *given: Any, **named: Any) -> Any:
    """Compare the ranks once they have made their mesh, as all do together: each raises if they differ."""
    mesh = original(*given, **named)
    if agreement.is_distributed():
        overlay.agree()
        EFFECT.changed += 1
    return mesh


#: What engines on FSDP make their mesh by. The caller is as it was tested: one that makes the mesh otherwise
#: would leave the ranks uncompared.
_ENGINES = (
    replaced(f"{_ENGINE}.utils:{_MESH}", compare),
    f"{_ENGINE}.transformer_impl:FSDPEngine._init_device_mesh",
)

PATCH = Patch(
    id="verl.agreement",
    summary="Compare the patches of all ranks when a worker on FSDP has made its device mesh",
    why="Ranks that run different patches, or the same ones on different sources, train on without a word. "
    "On FSDP nothing initialises Megatron's parallel state, where `megatron.agreement` compares them. With "
    "the patch the ranks of a worker compare what is in force once verl has made their device mesh, and all "
    "raise if they differ. Not compared are engines on VeOmni, TorchTitan and Automodel, and the trainer "
    "`fsdp_sft_trainer` of 0.6 and 0.7.0: they make their mesh by themselves.",
    changes=("safety",),
    met="Any job of more than one rank on verl's FSDP. Ranks that differ stop before they train.",
    evidence="It changes nothing that computes. The mesh is verl's own, and two ranks that are alike go on.",
    upstream=("verl-project/verl-ascend-recipe#112", "NVIDIA-NeMo/RL#3754", "vllm-project/vllm#27940"),
    companion=True,
    without="ranks on FSDP with other patches or other sources train on without a word",
    targets=one_target(
        VERL,
        variant(
            "0.6 and 0.7",
            *_ENGINES,
            # The workers that these releases train by unless they are told otherwise.
            replaced(f"{_WORKERS}:{_MESH}", compare),
            Calls(site=f"{_WORKERS}:ActorRolloutRefWorker.__init__", callee=_MESH),
            Calls(site=f"{_WORKERS}:CriticWorker.__init__", callee=_MESH),
        ),
        variant("0.8", *_ENGINES),
    ),
)
