"""`megatron.mtp-without-tokens`: multi-token prediction survives a micro-batch that has no token for it."""

from math import nan
from typing import Any

from overlay.compat.projects import MEGATRON
from overlay.effect import effect
from overlay.patch import Absent, Patch, around, one_target, replaced, variant

_MTP = "megatron.core.transformer.multi_token_prediction"
EFFECT = effect(__name__, "shifted tensor", did="found without a token")


@around
def roll_tensor(original: Any, *args: Any, **options: Any) -> Any:
    """Roll, and never say that the sum is zero: of a mask, that is what losses are divided by.

    All that is divided is zero then, so any number does. It is one that vanishes where ranks add theirs up.
    """
    import torch

    rolled, total = original(*args, **options)
    # No `if`, which would wait for the device: only that knows how many have none.
    EFFECT.changed = nan
    EFFECT.calls += 1
    # Labels are rolled too, but nobody divides by their sum.
    least = torch.finfo(total.dtype).eps if total.is_floating_point() else 1
    return rolled, total.masked_fill(total == 0, least)


PATCH = Patch(
    id="megatron.mtp-without-tokens",
    summary="Multi-token prediction survives a micro-batch without a token to predict",
    why="Megatron divides the loss of multi-token prediction by the tokens that are left in the shifted "
    "mask. If a rank has none in a micro-batch, loss and gradient are NaN, unless calculate_per_token_loss "
    "is on. With the patch such a micro-batch adds nothing. megatron.mtp-loss-scale does this too, and "
    "stands in for it.",
    changes=("crashes", "numbers"),
    met="mtp_num_layers set, with a micro-batch on a rank of which no token is left in the shifted mask.",
    evidence="megatron-core 0.17 divides by one at least (NVIDIA/Megatron-LM#3396). Other micro-batches are "
    "compared with the mean over their tokens.",
    upstream=("NVIDIA/Megatron-LM#3396",),
    targets=one_target(
        MEGATRON,
        # What 0.17 adds divides safely.
        variant(
            "0.12", replaced(f"{_MTP}:roll_tensor", roll_tensor), Absent(site=f"{_MTP}:process_mtp_loss")
        ),
    ),
)
