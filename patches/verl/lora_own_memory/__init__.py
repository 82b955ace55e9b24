"""`verl.lora-own-memory`: a LoRA adapter that vLLM is given does not change under its hands."""

from typing import Any

from overlay.compat.projects import VERL
from overlay.effect import effect
from overlay.patch import Patch, around, one_target, replaced, variant

_ROLLOUT = "verl.workers.rollout.vllm_rollout"
EFFECT = effect(__name__, "adapter", did="copied", always=True)


@around
def update_weights(original: Any, self: Any, weights: Any, peft_config: Any, base_sync_done: Any) -> Any:
    """Copy an adapter out of the buffer. vLLM itself copies the weights of the model."""
    if peft_config and base_sync_done:
        weights = [(name, tensor.clone()) for name, tensor in weights]
        EFFECT.changed += 1
    return original(self, weights, peft_config, base_sync_done)


PATCH = Patch(
    id="verl.lora-own-memory",
    summary="vLLM gets LoRA adapters in memory of their own",
    why="verl 0.8 hands the tensors of an unmerged LoRA adapter to vLLM as views of the buffer that it "
    "receives weights in, which the next bucket overwrites and which is freed after the last. A vLLM that "
    "keeps such a tensor reads other weights or freed memory: users report cudaErrorIllegalAddress from the "
    "second step on. With the patch the adapter is copied first, as in verl 0.7 and 0.9, which takes its "
    "size in memory. One that is sent in several buckets is still loaded in part; verl 0.9 collects it.",
    evidence="verl 0.9.0 copies an adapter out of the buffer too (#6688), as verl 0.7.1 did.",
    changes=("crashes",),
    met="LoRA that is not merged (lora.merge=False), with vLLM.",
    upstream=("verl-project/verl#6688", "verl-project/verl#6454"),
    targets=one_target(
        VERL,
        variant(
            "0.8",
            replaced(f"{_ROLLOUT}.utils:vLLMColocateWorkerExtension._update_weights", update_weights),
            f"{_ROLLOUT}.bucketed_weight_transfer:BucketedWeightReceiver.receive_weights",
        ),
    ),
)
