"""`megatron.mtp-loss-scale`: multi-token prediction weighs tokens alike on all context parallel ranks.

The losses stand in the middle of a long method, and are divided by what the function counts that shifts the
mask. It is wrapped and counts over all ranks. From 0.17 on the losses have a function of their own, which is
wrapped as well: what it is given is scaled by what the average over ranks takes away.
"""

from __future__ import annotations

from overlay.compat.projects import MEGATRON
from overlay.patch import Absent, Patch, one_target, replaced, variant
from overlay.patches.megatron.mtp_loss_scale.fix import make_losses, make_mean_roll, make_summed_roll

_MTP = "megatron.core.transformer.multi_token_prediction"
_ROLL = f"{_MTP}:roll_tensor"
_LOSSES = f"{_MTP}:process_mtp_loss"

PATCH = Patch(
    id="megatron.mtp-loss-scale",
    revision=2,
    summary="Multi-token prediction under context parallelism is divided by the tokens of all its ranks",
    why=(
        "The loss of multi-token prediction is a mean over the tokens of one context parallel rank, and is "
        "averaged over the ranks. If a prompt is masked they have different numbers: a token that has few "
        "others beside it on its rank weighs more, and where a rank has none, the loss of the others is "
        "halved, or is NaN up to 0.16. With calculate_per_token_loss it is so from 0.17 on, and a rank "
        "without a token of the main loss drops its part; before, only the report is. The patch makes the "
        "gradient and the report those of one process, at up to four all-reduces of one number for each "
        "depth. Data parallel ranks and micro-batches still divide by their own. Upstream has not decided "
        "yet, so it is selected by name alone."
    ),
    changes=("numbers",),
    met="Multi-token prediction (mtp_num_layers) with context parallelism.",
    opt_in=True,
    includes=("megatron.mtp-without-tokens",),
    evidence=(
        "Takes the mean over the tokens of all context parallel ranks, as one process does. Upstream's "
        "mean of ranks' means is open in NVIDIA/Megatron-LM#7498."
    ),
    upstream=("NVIDIA/Megatron-LM#7498", "NVIDIA/Megatron-LM#7452", "NVIDIA/Megatron-LM#3396"),
    targets=one_target(
        MEGATRON,
        variant(
            "0.14",
            replaced(_ROLL, make_mean_roll),
            Absent(site=_LOSSES),
        ),
        variant(
            "0.17",
            replaced(_LOSSES, make_losses),
            replaced(_ROLL, make_summed_roll),
        ),
    ),
)
