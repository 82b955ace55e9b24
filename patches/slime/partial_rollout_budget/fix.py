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


def make_generate(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Wrap the generation of one sample, whose answer comes at once or in pieces.

    Where slime calls it for a rollout that may be resumed, it is given the budget of the whole response. Any
    other caller, such as a generate function of several turns, keeps a budget of its own, and gets slime's.
    """
    own = f"{module.__name__}.{original.__name__}"

    async def generate(args: Any, sample: Any, sampling_params: Any) -> Any:
        called = getattr(sample, "generate_function_path", None) or args.custom_generate_function_path or own
        if args.partial_rollout and called == own:
            sampling_params = left(sample, sampling_params)
        return await original(args, sample, sampling_params)

    return generate
