"""`verl.lora-own-memory`: a LoRA adapter that vLLM is given does not change under its hands.

What receives weights in vLLM's worker hands them on as views of one buffer, which the next bucket is written
into, and which is freed after the last. The adapter is copied before it is handed to vLLM, as in verl 0.9.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from overlay.compat.projects import VERL
from overlay.effect import effect
from overlay.patch import Patch, one_target, replaced, variant

_ROLLOUT = "verl.workers.rollout.vllm_rollout"
_RECEIVE = f"{_ROLLOUT}.bucketed_weight_transfer:BucketedWeightReceiver.receive_weights"
_UPDATE = f"{_ROLLOUT}.utils:vLLMColocateWorkerExtension._update_weights"
EFFECT = effect(__name__, "adapter", did="copied", always=True)


def make_update_weights(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build `_update_weights`: an adapter is copied out of the buffer that it was sent in.

    The weights of the model itself are handed on as they come: vLLM copies these into its own.
    """

    def _update_weights(
        self: Any, weights: list[tuple[str, Any]], peft_config: dict[str, Any], base_sync_done: bool
    ) -> Any:
        if peft_config and base_sync_done:
            weights = [(name, tensor.clone()) for name, tensor in weights]
            EFFECT.changed += 1
        return original(self, weights, peft_config, base_sync_done)

    return _update_weights


PATCH = Patch(
    id="verl.lora-own-memory",
    summary="vLLM gets LoRA adapters in memory of their own",
    why=(
        "verl 0.8 hands the tensors of an unmerged LoRA adapter to vLLM as views of the buffer that weights "
        "are sent in. The buffer is written again by the next bucket, and freed after the last. A vLLM that "
        "keeps such a tensor reads what comes next, or memory that is gone: cudaErrorIllegalAddress is "
        "reported from the second step on. With the patch the adapter is copied first, as in verl 0.9, which "
        "takes its size in memory until vLLM has loaded it. What a vLLM keeps depends on its release: verl "
        "asks it for a copy in the memory of the host, and there the patch changes nothing. An adapter that "
        "is sent in several buckets is loaded in part, with the patch as without; verl 0.9 collects it. verl "
        "0.7 copies by itself."
    ),
    evidence="verl 0.9.0 copies an adapter out of the buffer too (#6688), as verl 0.7.1 did.",
    changes=("crashes",),
    met="LoRA that is not merged (lora.merge=False), with vLLM.",
    upstream=("verl-project/verl#6688", "verl-project/verl#6454"),
    targets=one_target(
        VERL,
        variant(
            "0.8",
            replaced(_UPDATE, make_update_weights),
            _RECEIVE,
        ),
    ),
)
