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
#: What frees the activation, and where upstream has mended it.
_SCHEDULE = "megatron.core.pipeline_parallel.schedules:forward_backward_pipelining_with_interleaving"

PATCH = Patch(
    id="megatron.vpp-send-before-free",
    summary="The interleaved pipeline keeps an activation's memory until it has been sent",
    why=(
        "With overlapped communication, Megatron's interleaved pipeline starts to send an activation to the "
        "next stage and frees its memory before it has waited for the send. What is computed next may be "
        "written there, and the next stage then goes on with other numbers: gradients are wrong, or NaN, "
        "and nothing says so. With the patch the send itself holds the memory. At most two activations are "
        "held at a time, and no stage waits for anything that it did not wait for before, as it does in 0.18."
    ),
    changes=("numbers", "memory"),
    met=(
        "Virtual pipeline stages with overlap_p2p_comm and deallocate_pipeline_outputs, both of which "
        "Megatron's own arguments set with virtual stages."
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
        fixed(
            "0.18",
            ">=0.18.0.dev0",
            # 0.18; 0.19; main; dev
            known(_SCHEDULE, "99c4d724a6ae", "aa144275bb95", "426f8be2cc0e", "c3a621f158a2"),
            reason="the schedule waits for a send before it frees what is sent",
        ),
    ),
)
