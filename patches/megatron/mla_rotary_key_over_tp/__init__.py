"""`megatron.mla-rotary-key-over-tp`: the key that all heads of multi-latent attention share has its gradient.

The method that makes queries, keys and values is wrapped. Its keys are handed on as they are; on the way back
the gradient of their rotary part, which a rank has of its own heads only, is summed over the ranks.
"""

from __future__ import annotations

from overlay.compat.projects import MEGATRON
from overlay.patch import Patch, Removal, one_target, replaced, variant
from overlay.patches.megatron.mla_rotary_key_over_tp.fix import make_tensors

# Its digests say that the last part of each head's key is the rotary one, and that nothing sums its gradient.
_TENSORS = "megatron.core.transformer.multi_latent_attention:MLASelfAttention.get_query_key_value_tensors"

PATCH = Patch(
    id="megatron.mla-rotary-key-over-tp",
    summary="The rotary key of multi-latent attention has the gradient of all heads, not of one rank's",
    why=(
        "All heads of multi-latent attention share one rotary key, and each tensor parallel rank has its own "
        "heads. Megatron hands back the gradient of that key from a rank's heads alone, but for one case: "
        "sequence parallelism with a down projection that every rank has whole, as Transformer Engine's "
        "layers have it from 0.14 on. In all others the gradient of that projection's last rows, of the "
        "input and so of every layer before is too small, and without sequence parallelism differs between "
        "ranks, whose copies drift apart. With the patch the parts are summed: one all-reduce of that key "
        "for each layer in the backward pass."
    ),
    changes=("numbers",),
    met=(
        "multi_latent_attention with tensor parallelism: before 0.14, without sequence_parallel, without "
        "Transformer Engine, or with mla_down_proj_fusion."
    ),
    evidence=(
        "One process of Megatron's own layer has the same gradients, and so does Megatron where a whole "
        "down projection meets sequence parallelism."
    ),
    upstream=("NVIDIA/Megatron-LM#6839",),
    remove=Removal(
        when="a release sums the gradient of the rotary key over the tensor parallel ranks",
        test="tests/real/test_contracts.py::test_upstream_alone_keeps_the_contract",
    ),
    targets=one_target(
        MEGATRON,
        variant(
            "0.12",
            ">=0.12.0.dev0,<0.21.0.dev0",
            replaced(
                _TENSORS,
                make_tensors,
                *("3a5f22497181", "84840dd2a041"),  # 0.12, 0.13
                *("31ddfb010419", "642dc0f4920b"),  # 0.14, 0.15
                *("be0d153a48e1", "66dfcd528f9f"),  # commits before 0.16; 0.16
                *("a45051126687", "2edf086ba198"),  # 0.17, 0.18
                *("db7aacd55fb1", "fddc813e8448"),  # 0.19, main of August 2026
                "edae032e5d69",  # verl's image for ROCm, between these two
            ),
        ),
    ),
)
