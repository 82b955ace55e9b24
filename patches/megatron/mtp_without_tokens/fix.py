"""What takes the place of the function that shifts labels and masks for multi-token prediction."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any


def make_roll_tensor(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build `roll_tensor`, whose sum is never zero: of a mask, that is what losses are divided by.

    All that is divided is zero then, so any number does. It is one that vanishes where ranks add theirs up.
    """
    import torch

    from overlay.patches.megatron.mtp_without_tokens.effect import EFFECT

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
