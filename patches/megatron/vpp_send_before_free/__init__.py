"""`megatron.vpp-send-before-free`: an activation keeps its memory as long as it is being sent.

The schedule frees an activation by giving its tensor other data, and torch holds that very tensor while it
sends. The function that sends is given a second tensor over the same memory, so that torch holds the memory.
Nothing is waited for, and nothing of the schedule is copied.
"""

from __future__ import annotations

from overlay.compat.projects import MEGATRON
from overlay.patch import Patch, Removal, fixed, known, one_target, replaced, variant
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
    remove=Removal(
        version="0.18.0",
        when="the schedule waits for a send before it frees what is sent",
        test="tests/real/test_contracts.py::test_upstream_alone_keeps_the_contract",
    ),
    targets=one_target(
        MEGATRON,
        variant(
            "0.12",
            ">=0.12.0.dev0,<0.18.0.dev0",
            replaced(
                _P2P_OPS,
                make_p2p_ops,
                "83a5088e1d83",  # 0.12, 0.13
                "61a66315eb32",  # 0.14 to 0.17, and the images' commits
            ),
        ),
        variant(
            "0.18, before the fix",
            ">=0.18.0.dev0,<0.19.0.dev0",
            replaced(_P2P_OPS, make_p2p_ops, "61a66315eb32"),
            known(_SCHEDULE, "e6c779c35d11", "ca6bb41d1ea4"),  # 0.16; 0.17
        ),
        fixed(
            "0.18",
            ">=0.18.0.dev0",
            # 0.18; 0.19; dev of July 2026, fd1121b8; main of August 2026
            known(_SCHEDULE, "99c4d724a6ae", "aa144275bb95", "c3a621f158a2", "426f8be2cc0e"),
            reason="the schedule waits for a send before it frees what is sent",
        ),
    ),
)
