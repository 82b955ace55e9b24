"""What hands slime's rows of a response the temperature: that of the rollout for logits, 1 for values."""

from __future__ import annotations

import functools
from collections.abc import Callable
from copy import copy
from types import ModuleType
from typing import Any


def at_own_temperature(logits: Any, args: Any) -> Any:
    """Return slime's arguments, with a temperature of 1 for values [1, T, 1]: logits have a vocabulary."""
    if logits.size(-1) != 1 or args.rollout_temperature == 1.0:
        return args
    from overlay.patches.slime.value_temperature.effect import EFFECT

    EFFECT.changed += 1
    EFFECT.temperature = args.rollout_temperature
    plain = copy(args)
    plain.rollout_temperature = 1.0
    return plain


def make_responses(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap the rows of each response; from slime 0.2.2 on it is told what sequences are padded to."""

    @functools.wraps(original)
    def get_responses(logits: Any, *, args: Any, **given: Any) -> Any:
        yield from original(logits, args=at_own_temperature(logits, args), **given)

    return get_responses
