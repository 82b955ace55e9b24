"""`megatron.masked-loss-cp`: a masked loss is divided by the tokens of all context parallel ranks.

Megatron divides the sum of each rank by the tokens of that rank, and averages over the ranks. The function
that does so is given the loss function, which is wrapped: its sum comes out as much larger as the divisor is
too small. Of the function itself nothing is copied.
"""

from __future__ import annotations

from overlay.compat.projects import MEGATRON
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches.megatron.masked_loss_cp.fix import make_calc_loss

_CALC = "megatron.core.pipeline_parallel.schedules:forward_step_calc_loss"

PATCH = Patch(
    id="megatron.masked-loss-cp",
    summary="A masked loss under context parallelism is divided by the tokens of all its ranks",
    why=(
        "Without calculate_per_token_loss, Megatron divides a sum that a loss function returns with its "
        "number of tokens by the tokens of its own context parallel rank, and averages over the ranks. If a "
        "prompt is masked, the ranks have different numbers: a token that has few others beside it on its "
        "rank weighs more, and where a rank has none, the loss of the others is halved, or is NaN in 0.14. "
        "With the patch the sum of all ranks is divided by the tokens of all, in one more all-reduce of one "
        "number for each micro-batch. Data parallel ranks still divide by their own. Upstream has not "
        "decided yet, so it is selected by name alone."
    ),
    changes=("numbers",),
    met=(
        "Context parallelism without calculate_per_token_loss, and a loss function that returns a sum, a "
        "number of tokens and a report, as that of Megatron's pretrain_gpt.py."
    ),
    opt_in=True,
    evidence=(
        "Takes the mean over the tokens of all context parallel ranks, as one process does. Upstream's "
        "mean of ranks' means is open in NVIDIA/Megatron-LM#7513."
    ),
    upstream=("NVIDIA/Megatron-LM#7513", "NVIDIA/Megatron-LM#7452", "NVIDIA/Megatron-LM#1764"),
    targets=one_target(
        MEGATRON,
        variant(
            "0.14",
            replaced(_CALC, make_calc_loss),
        ),
    ),
)
