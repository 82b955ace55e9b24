"""`verl.lora-own-memory`: a LoRA adapter that vLLM is given does not change under its hands.

What receives weights in vLLM's worker hands them on as views of one buffer, which the next bucket is written
into, and which is freed after the last. The adapter is copied before it is handed to vLLM, as in verl 0.9.
"""

from __future__ import annotations

from overlay.compat.projects import VERL
from overlay.patch import Absent, Patch, Removal, fixed, known, not_affected, one_target, replaced, variant
from overlay.patches.verl.lora_own_memory.fix import make_update_weights

_ROLLOUT = "verl.workers.rollout.vllm_rollout"
_RECEIVE = f"{_ROLLOUT}.bucketed_weight_transfer:BucketedWeightReceiver.receive_weights"
_UPDATE = f"{_ROLLOUT}.utils:vLLMColocateWorkerExtension._update_weights"

PATCH = Patch(
    id="verl.lora-own-memory",
    summary="vLLM gets LoRA adapters in memory of their own",
    why=(
        "verl 0.8 hands the tensors of an unmerged LoRA adapter to vLLM as views of the buffer that weights "
        "are sent in. The buffer is written again by the next bucket, and freed after the last. A vLLM that "
        "keeps such a tensor reads what comes next, or memory that is gone: cudaErrorIllegalAddress is "
        "reported from the second step on. With the patch the adapter is copied first, as in verl 0.9, which "
        "takes its size in memory until vLLM has loaded it. What a vLLM keeps depends on its release: verl "
        "asks it for a copy in the memory of the host, and there the patch changes nothing. verl 0.7 copies "
        "by itself."
    ),
    evidence="verl 0.9.0 copies an adapter out of the buffer too (#6688), as verl 0.7.1 did.",
    changes=("crashes",),
    met="LoRA that is not merged (lora.merge=False), with vLLM.",
    upstream=("verl-project/verl#6688", "verl-project/verl#6454"),
    remove=Removal(
        version="0.9.0",
        when="an adapter is copied before vLLM gets it",
        test="tests/real/test_contracts.py::test_upstream_alone_keeps_the_contract",
    ),
    targets=one_target(
        VERL,
        variant(
            "0.8",
            ">=0.8.0.dev0,<0.9.0.dev0",
            replaced(_UPDATE, make_update_weights, "e4a1c0717054"),
            # Only relied on, but for what a digest alone says: that it hands on views.
            known(_RECEIVE, "d22113f3f0bf"),
        ),
        fixed(
            "0.9",
            ">=0.9.0.dev0",
            # 0.9.0; 0.9.1
            known(_UPDATE, "0ba2f1c5bef1", "9403149ab73d"),
            reason="verl 0.9 copies adapters",
        ),
        not_affected(
            "0.7.1",
            ">=0.7.1.dev0,<0.8.0.dev0",
            known(_RECEIVE, "9efae69aee75"),
            reason="verl 0.7.1 copies all that it receives",
        ),
        not_affected(
            "0.7.0",
            "<0.7.1.dev0",
            Absent(site=_RECEIVE),
            reason="weights are sent in such a buffer from verl 0.7.1 on",
        ),
    ),
)
