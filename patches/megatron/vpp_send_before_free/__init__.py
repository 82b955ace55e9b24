"""`megatron.vpp-send-before-free`: an activation keeps its memory as long as it is being sent.

The schedule frees an activation by giving its tensor other data, and torch holds that very tensor while it
sends. The function that sends is given a second tensor over the same memory, so that torch holds the memory.
Nothing is waited for, and nothing of the schedule is copied.
"""

from __future__ import annotations

from overlay.compat.projects import MEGATRON
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches.megatron.vpp_send_before_free.fix import make_p2p_ops

_P2P_OPS = "megatron.core.pipeline_parallel.p2p_communication:_p2p_ops"
#: Where the fix is. The label 0.18 came to main two weeks before it, and stands on commits of dev without it.
_SCHEDULE = "megatron.core.pipeline_parallel.schedules:forward_backward_pipelining_with_interleaving"

PATCH = Patch(
    id="megatron.vpp-send-before-free",
    summary="The interleaved pipeline keeps an activation's memory until it has been sent",
    why=(
        "With overlapped communication, Megatron's interleaved pipeline starts to send an activation to the "
        "next stage and frees its memory before it has waited for the send. What is computed next may be "
        "written there, and the next stage then goes on with other numbers: gradients are wrong, or NaN, "
        "and nothing says so. With the patch the send itself holds the memory. At most two activations are "
        "held at a time, and no stage waits for anything that it did not wait for before, as in 0.18. "
        "A torch whose NCCL backend records the stream of each send (its source did so until the middle of "
        "2025 at least, pytorch#155854) keeps the memory by itself: there the patch changes nothing."
    ),
    changes=("numbers", "memory"),
    met=(
        "Virtual pipeline stages with overlap_p2p_comm and deallocate_pipeline_outputs, both of which "
        "Megatron's own arguments set with virtual stages."
    ),
    evidence=(
        "megatron-core 0.18 keeps the activation as well, by a wait before it frees it (NVIDIA/Megatron- "
        "LM#4047). The contract looks at what is sent when the schedule waits for it."
    ),
    upstream=("NVIDIA/Megatron-LM#4047",),
    targets=one_target(
        MEGATRON,
        variant("0.12", replaced(_P2P_OPS, make_p2p_ops)),
        variant(
            "0.18, before the fix",
            replaced(_P2P_OPS, make_p2p_ops),
            _SCHEDULE,
        ),
        tells=(_SCHEDULE,),
    ),
)
