"""`megatron.mtp-without-tokens`: multi-token prediction survives a micro-batch that has no token for it.

The function that shifts labels and masks also says how many tokens are left. Wrapped, it never says zero,
by which Megatron would divide.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from overlay.compat.projects import MEGATRON
from overlay.effect import effect
from overlay.patch import Absent, Patch, one_target, replaced, variant

_ROLL = "megatron.core.transformer.multi_token_prediction:roll_tensor"
#: New in 0.17, with a division that is safe.
_LOSS = "megatron.core.transformer.multi_token_prediction:process_mtp_loss"
EFFECT = effect(
    __name__,
    "shifted mask",
    did="found without a token",
    then="without it such a micro-batch is a loss and a gradient of NaN, unless losses are per token",
)


def make_roll_tensor(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build `roll_tensor`, whose sum is never zero: of a mask, that is what losses are divided by.

    All that is divided is zero then, so any number does. It is one that vanishes where ranks add theirs up.
    """
    import torch

    @functools.wraps(original)
    def roll_tensor(*args: Any, **options: Any) -> Any:
        rolled, total = original(*args, **options)
        none = total == 0
        if not total.is_floating_point():
            # Of labels, whose sum nobody divides by.
            return rolled, total.masked_fill(none, 1)
        # No `if`, which would wait for the device: it is counted there.
        EFFECT.calls += 1
        EFFECT.changed = EFFECT.changed + none
        return rolled, total.masked_fill(none, torch.finfo(total.dtype).eps)

    return roll_tensor


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
