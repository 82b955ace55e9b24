"""`megatron.mla-rotary-key-over-tp`: the key that all heads of multi-latent attention share has its gradient.

The method that makes queries, keys and values is wrapped. Its keys are handed on as they are; on the way back
the gradient of their rotary part, which a rank has of its own heads only, is summed over the ranks.
"""

from __future__ import annotations

from overlay.compat.projects import MEGATRON
from overlay.patch import Patch, one_target, replaced, variant
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
    targets=one_target(
        MEGATRON,
        variant(
            "0.12",
            replaced(_TENSORS, make_tensors),
        ),
    ),
)
