"""`megatron.offloaded-common-state`: checkpoints with lists of one rank's weights load on all ranks."""

from typing import Any

from overlay.compat.projects import MEGATRON
from overlay.effect import effect
from overlay.patch import Patch, around, one_target, replaced, variant

_LOAD = "megatron.core.dist_checkpointing.strategies.common:TorchCommonLoadStrategy.load_common"
_OPTIMIZER = "megatron.core.optimizer.distrib_optimizer:DistributedOptimizer"
_SAVED = f"{_OPTIMIZER}.sharded_param_state_dp_reshardable"
EFFECT = effect(__name__, "checkpoint", did="left one rank's list of weights out of")


@around
def load_common(original: Any, *args: Any, **named: Any) -> Any:
    """Leave out the list, which has the steps alone: they are saved for each group of weights too."""
    state = original(*args, **named)
    EFFECT.calls += 1
    optimizer = state.get("optimizer") if isinstance(state, dict) else None
    if isinstance(optimizer, dict):
        for one in (optimizer, *optimizer.values()):
            if isinstance(one, dict) and one.get("param_state_sharding_type") == "dp_reshardable":
                EFFECT.changed += one.pop("param_state", None) is not None
    return state


PATCH = Patch(
    id="megatron.offloaded-common-state",
    summary="A checkpoint of an offloaded optimizer loads on ranks with other weights too",
    why="Megatron in slime's images from 0.2.2 to 0.2.4 saves the number of steps of each weight of an "
    "optimizer that is offloaded to the CPU in what all ranks load, as the list of the weights that rank 0 "
    "steps. Ranks with other weights can't resume: ValueError, Cannot merge two lists with different "
    "lengths. With the patch the list is left out: the steps are saved for each group of weights too.",
    changes=("crashes",),
    met="A resume of slime in an image from 0.2.2 to 0.2.4 with --optimizer-cpu-offload, in the format "
    "dp_reshardable, or with Megatron 0.15 or 0.16 from a checkpoint of such a job.",
    upstream=("radixark/Megatron-LM#66", "radixark/Megatron-LM#69", "NVIDIA/Megatron-LM#2874"),
    evidence="Moments are loaded to the bit. slime's diff to Megatron saves no such list from 0.3.0 on, "
    "Megatron from 0.16 on.",
    targets=one_target(MEGATRON, variant("0.15", replaced(_LOAD, load_common), _SAVED)),
)
