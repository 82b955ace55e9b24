"""`megatron.mtp-without-tokens`: multi-token prediction survives a micro-batch that has no token for it.

The function that shifts labels and masks also says how many tokens are left. Wrapped, it never says zero,
by which Megatron would divide.
"""

from __future__ import annotations

from overlay.compat.projects import MEGATRON
from overlay.patch import Absent, Patch, one_target, replaced, variant
from overlay.patches.megatron.mtp_without_tokens.fix import make_roll_tensor

_ROLL = "megatron.core.transformer.multi_token_prediction:roll_tensor"
#: New in 0.17, with a division that is safe.
_LOSS = "megatron.core.transformer.multi_token_prediction:process_mtp_loss"

PATCH = Patch(
    id="megatron.mtp-without-tokens",
    summary="Multi-token prediction survives a micro-batch without a token to predict",
    why=(
        "Megatron divides the loss of multi-token prediction by the number of tokens that are left in the "
        "mask once it has been shifted. If a rank has none in a micro-batch (all masked, or only the first "
        "token, as of a response of one token), that is 0/0: the logged loss is NaN, and so is the gradient "
        "of every parameter, unless calculate_per_token_loss is on. With the patch such a micro-batch adds "
        "nothing to loss and gradient, as from 0.17 on. All others are as they were. "
        "megatron.mtp-loss-scale does this too, and stands in for it where both are selected."
    ),
    changes=("crashes", "numbers"),
    met="mtp_num_layers set, with a micro-batch on a rank of which no token is left in the shifted mask.",
    evidence=(
        "megatron-core 0.17 divides by one at least (NVIDIA/Megatron-LM#3396). Other micro-batches are "
        "compared with the mean over their tokens."
    ),
    upstream=("NVIDIA/Megatron-LM#3396",),
    targets=one_target(
        MEGATRON,
        variant(
            "0.12",
            replaced(_ROLL, make_roll_tensor),
            Absent(site=_LOSS),
        ),
    ),
)
