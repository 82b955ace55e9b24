"""`megatron.reduce-contiguous`: sums over tensor parallel ranks of tensors of any strides.

`_reduce` adds up a contiguous copy of what it is given, and returns what it was given. So it is given the
copy. A contiguous tensor takes the way it has always taken, in place and without a copy.
"""

from __future__ import annotations

from overlay.compat.projects import MEGATRON
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches.megatron.reduce_contiguous.fix import make_reduce, make_reduce_0_12

_REDUCE = "megatron.core.tensor_parallel.mappings:_reduce"

PATCH = Patch(
    id="megatron.reduce-contiguous",
    summary="Sums over tensor parallel ranks of tensors that are not contiguous",
    why=(
        "Megatron's all-reduce over tensor parallel ranks adds up a contiguous copy of a tensor and returns "
        "the tensor, without the sum, if that is not contiguous. Each rank then goes on with its own part: "
        "of the gradient at the entry of a column parallel layer, of the output of a row parallel one. "
        "Megatron's own layers hand in contiguous tensors; an adapter, a head of one's own or a fused "
        "output layer may hand in a transposed or expanded one. With the patch the sum is returned."
    ),
    changes=("numbers",),
    met=(
        "Tensor parallelism, and a module beyond Megatron's own that hands a transposed, sliced or expanded "
        "tensor, or its gradient, to copy_to_ or reduce_from_tensor_model_parallel_region."
    ),
    evidence=(
        "megatron-core 0.19 returns the tensor that it has reduced (NVIDIA/Megatron-LM#5338). Sums are "
        "compared with float64 on one process."
    ),
    upstream=("NVIDIA/Megatron-LM#5338",),
    targets=one_target(
        MEGATRON,
        variant("0.12", replaced(_REDUCE, make_reduce_0_12)),
        variant("0.13", replaced(_REDUCE, make_reduce)),
    ),
)
