"""`megatron.agreement`: ranks compare their patches as soon as Megatron's process groups exist."""

from typing import Any

import overlay
from overlay.compat import agreement
from overlay.compat.projects import MEGATRON
from overlay.effect import effect
from overlay.patch import Calls, Patch, around, one_target, replaced, variant

_STATE = "megatron.core.parallel_state"
_LAST_STEP = "_set_global_memory_buffer"
EFFECT = effect(__name__, "comparison", did="made", always=True)


@around
def compare(original: Any) -> None:
    """Compare the ranks in the last step of `initialize_model_parallel`: on each it raises if they differ."""
    original()
    if agreement.is_distributed():
        overlay.agree()
        EFFECT.changed += 1


PATCH = Patch(
    id="megatron.agreement",
    summary="Compare the patches of all ranks when the model parallel state has been initialised",
    why="Ranks that run different patches, or the same ones on different sources, train on without a word. "
    "With the patch they compare what is in force once Megatron has made its process groups, and all raise "
    "if they differ.",
    changes=("safety",),
    met="Any job of more than one rank. Ranks that differ stop before they train.",
    evidence="It changes nothing that computes. In random jobs healthy ranks go on, and others are named.",
    upstream=("verl-project/verl-ascend-recipe#112", "NVIDIA-NeMo/RL#3754", "vllm-project/vllm#27940"),
    companion=True,
    without="ranks with other patches or other sources train on without a word",
    targets=one_target(
        MEGATRON,
        variant(
            "0.12",
            replaced(f"{_STATE}:{_LAST_STEP}", compare),
            Calls(site=f"{_STATE}:initialize_model_parallel", callee=_LAST_STEP, last=True),
        ),
    ),
)
