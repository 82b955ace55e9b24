"""What takes the place of the function that shifts labels and masks for multi-token prediction."""

from __future__ import annotations

import functools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any


def make_roll_tensor(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build `roll_tensor`, whose sum is one where it would be zero: of a mask, that is what is divided by."""

    @functools.wraps(original)
    def roll_tensor(*args: Any, **options: Any) -> Any:
        rolled, total = original(*args, **options)
        # No `if`, which would wait for the device.
        return rolled, total.masked_fill(total == 0, 1)

    return roll_tensor
