"""What leaves a rollout that is resumed the tokens that it has not used."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any


def left(sample: Any, sampling_params: Any) -> Any:
    """Return the parameters with the new tokens that the sample's response has left, none if it is longer."""
    from overlay.patches.slime.partial_rollout_budget.effect import EFFECT

    EFFECT.calls += 1
    EFFECT.changed += sample.response_length > 0
    EFFECT.over += sample.response_length
    most = max(sampling_params["max_new_tokens"] - sample.response_length, 0)
    return {**sampling_params, "max_new_tokens": most}


def make_generate(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap the generation of one sample, whose answer comes at once or in pieces."""

    async def generate(args: Any, sample: Any, sampling_params: Any) -> Any:
        return await original(args, sample, left(sample, sampling_params))

    return generate
