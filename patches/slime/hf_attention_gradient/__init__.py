"""`slime.hf-attention-gradient`: a layer that every rank runs on all tokens gets the gradient of all tokens.

slime runs Gated DeltaNet layers whole on every rank: the ranks gather the tokens, and keep their own of the
output. What a rank gives back to the tokens of another is a part of their gradient under context parallelism,
where the ranks keep different tokens, and a copy under tensor parallelism, where they get the same gradient.
So the backward of a gather is a sum in the one, and none in the other. slime 0.2.4 dropped both sums, and the
releases before it had both: here each of them gets the one that it lacks, in the backward of the gather, and
the division that undoes the other, around the layer's `forward`, which is what both can be reached by.
"""

from __future__ import annotations

from overlay.compat.projects import SLIME
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches.slime.hf_attention_gradient.fix import make_backward, make_forward

_LAYER = "slime_plugins.models.hf_attention"
_GATHER = f"{_LAYER}:_AllGatherForDuplicatedComputation"

PATCH = Patch(
    id="slime.hf-attention-gradient",
    revision=2,
    summary="The gradient below Gated DeltaNet layers is that of one process, under CP and under TP",
    why=(
        "slime runs each Gated DeltaNet layer (Qwen3-Next, Qwen3.5) whole on every rank, and each rank keeps "
        "the output at its own tokens. Since 0.2.4 the backward keeps of the gradient what a rank gives back "
        "to its own tokens, and drops what it gives back to those of the other context parallel ranks: "
        "everything below such a layer is trained with a wrong gradient, without an error. From 0.2.0 to "
        "0.2.3 it is the gradient times the tensor parallel size under sequence parallelism, once more with "
        "each such layer. With the patch it is that of one process in both."
    ),
    changes=("numbers",),
    met=(
        "Qwen3-Next or Qwen3.5 with slime's own layer: from 0.2.4 on a context parallel size above 1, before "
        "it tensor parallelism with --sequence-parallel."
    ),
    upstream=("THUDM/slime#1748",),
    evidence=(
        "The gradient is that of one process in float64 with the same layer on all tokens, on ranks of "
        "context, tensor and sequence parallelism (tests/real/test_hf_attention.py)."
    ),
    targets=one_target(
        SLIME,
        variant(
            "0.2",
            replaced(f"{_LAYER}:HuggingfaceAttention.forward", make_forward),
        ),
        variant(
            "0.2.4",
            replaced(f"{_GATHER}.backward", make_backward),
            f"{_GATHER}.forward",
        ),
        tells=(_LAYER,),
    ),
)
