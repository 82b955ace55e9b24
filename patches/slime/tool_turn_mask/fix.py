"""What renders results of tools that follow each other as the one turn that a chat template makes of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from copy import copy
from itertools import groupby
from types import ModuleType
from typing import Any


class _Turn(dict[str, object]):
    """Messages of tools in a row, as the first of them, which has all of them."""

    def __init__(self, messages: Sequence[Any]) -> None:
        super().__init__(messages[0])
        self.messages = messages


class _Tokenizer:
    """A tokenizer for which a turn is the messages that it has."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def __call__(self, *given: Any, **options: Any) -> Any:
        return self._own(*given, **options)

    def apply_chat_template(self, conversation: Sequence[Any], *given: Any, **options: Any) -> Any:
        turns = (one.messages if isinstance(one, _Turn) else [one] for one in conversation)
        return self._own.apply_chat_template([one for turn in turns for one in turn], *given, **options)


def turns(messages: Sequence[Any]) -> list[Any]:
    """Return the messages with those of tools that follow each other as one."""
    from overlay.patches.slime.tool_turn_mask.effect import EFFECT

    found: list[Any] = []
    for is_tool, group in groupby(messages, lambda message: message["role"] == "tool"):
        run = list(group)
        found += [_Turn(run)] if is_tool and len(run) > 1 else run
    several = sum(isinstance(one, _Turn) for one in found)
    EFFECT.calls += 1
    EFFECT.changed += several > 0
    EFFECT.turns += several
    return found


def by_turns(generator: Any) -> Any:
    """Return slime's generator of masks, whose tokenizer knows turns."""
    made = copy(generator)
    made.tokenizer = _Tokenizer(generator.tokenizer)
    return made


def make_mask(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap what tokenises a conversation for Qwen3. From slime 0.2.2 on it is told which tools there are."""

    @functools.wraps(original)
    def gen_multi_turn_loss_mask_qwen3(self: Any, messages: Any, *tools: Any, **named: Any) -> Any:
        return original(by_turns(self), turns(messages), *tools, **named)

    return gen_multi_turn_loss_mask_qwen3
