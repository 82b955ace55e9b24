"""What hands slime's rows of a response the temperature: that of the rollout for logits, 1 for values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


def at_own_temperature(logits: Any, args: Any) -> Any:
    """Return slime's arguments, with a temperature of 1 for values [1, T, 1]: logits have a vocabulary."""
    from copy import copy

    if logits.size(-1) != 1 or args.rollout_temperature == 1.0:
        return args
    from overlay.patches.slime.value_temperature.effect import EFFECT

    EFFECT.changed += 1
    EFFECT.temperature = args.rollout_temperature
    plain = copy(args)
    plain.rollout_temperature = 1.0
    return plain


def make_responses_0_2_0(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap the rows of each response in slime 0.2.0 and 0.2.1."""

    def get_responses(
        logits: Any,
        *,
        args: Any,
        unconcat_tokens: Sequence[Any],
        total_lengths: Sequence[int],
        response_lengths: Sequence[int],
    ) -> Any:
        yield from original(
            logits,
            args=at_own_temperature(logits, args),
            unconcat_tokens=unconcat_tokens,
            total_lengths=total_lengths,
            response_lengths=response_lengths,
        )

    return get_responses


def make_responses(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap the same from slime 0.2.2 on, where it is told the lengths that sequences are padded to."""

    def get_responses(
        logits: Any,
        *,
        args: Any,
        unconcat_tokens: Sequence[Any],
        total_lengths: Sequence[int],
        response_lengths: Sequence[int],
        max_seq_lens: Sequence[int] | None = None,
    ) -> Any:
        yield from original(
            logits,
            args=at_own_temperature(logits, args),
            unconcat_tokens=unconcat_tokens,
            total_lengths=total_lengths,
            response_lengths=response_lengths,
            max_seq_lens=max_seq_lens,
        )

    return get_responses
