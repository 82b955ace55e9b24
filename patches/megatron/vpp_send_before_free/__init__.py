"""`megatron.vpp-send-before-free`: an activation keeps its memory as long as it is being sent."""

from typing import Any

from overlay.compat.projects import MEGATRON
from overlay.effect import effect
from overlay.patch import Patch, around, one_target, replaced, variant

_P2P_OPS = "megatron.core.pipeline_parallel.p2p_communication:_p2p_ops"
#: Where the fix is. The label 0.18 came to main two weeks before it, and stands on commits of dev without it.
_SCHEDULE = "megatron.core.pipeline_parallel.schedules:forward_backward_pipelining_with_interleaving"
EFFECT = effect(__name__, "send", did="kept in memory until it was done", always=True)


@around
def p2p_ops(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Send a second tensor over the same memory, which the schedule does not empty.

    The schedule frees an activation by giving its tensor other data, and torch holds that very tensor while
    it sends. torch lets go of the second one when the send has been waited for, or is dropped.
    """
    sent = kwargs.get("tensor_send_next")
    if sent is not None:
        kwargs["tensor_send_next"] = sent.detach()
        EFFECT.changed += 1
    return original(*args, **kwargs)


PATCH = Patch(
    id="megatron.vpp-send-before-free",
    summary="The interleaved pipeline keeps an activation's memory until it has been sent",
    why="With overlapped communication, Megatron's interleaved pipeline frees the memory of an activation "
    "before it has waited for the send. What is computed next may be written there, and the next stage goes "
    "on with other numbers: gradients are wrong, or NaN, without a word. With the patch the send holds the "
    "memory, of at most two activations at a time, and no stage waits for more. A torch whose NCCL backend "
    "records the stream of each send (its source did so until the middle of 2025 at least, pytorch#155854) "
    "keeps the memory by itself.",
    changes=("numbers", "memory"),
    met="Virtual pipeline stages with overlap_p2p_comm and deallocate_pipeline_outputs, both of which "
    "Megatron's own arguments set with virtual stages.",
    evidence="megatron-core 0.18 waits for the send before it frees the activation "
    "(NVIDIA/Megatron-LM#4047).",
    upstream=("NVIDIA/Megatron-LM#4047",),
    targets=one_target(
        MEGATRON,
        variant("0.12", replaced(_P2P_OPS, p2p_ops)),
        variant("0.18, before the fix", replaced(_P2P_OPS, p2p_ops), _SCHEDULE),
        tells=(_SCHEDULE,),
    ),
)
