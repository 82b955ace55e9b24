"""`slime.tool-turn-mask`: results of tools that follow each other are one turn, as in the chat template."""

from collections.abc import Sequence
from copy import copy
from itertools import groupby
from typing import Any

from overlay.compat.projects import SLIME
from overlay.effect import effect
from overlay.patch import Patch, around, one_target, replaced, variant

_MASK = "slime.utils.mask_utils:MultiTurnLossMaskGenerator.gen_multi_turn_loss_mask_qwen3"
EFFECT = effect(__name__, "conversation")


class _Turn(dict[str, object]):
    """Messages of tools in a row, as the first of them, which has all of them."""

    def __init__(self, messages: Sequence[Any]) -> None:
        super().__init__(messages[0])
        self.messages = messages


class _Tokenizer:
    """A tokenizer for which a turn is the messages that it has."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __call__(self, *given: Any, **options: Any) -> Any:
        return self._tokenizer(*given, **options)

    def apply_chat_template(self, conversation: Sequence[Any], *given: Any, **options: Any) -> Any:
        turns = (one.messages if isinstance(one, _Turn) else [one] for one in conversation)
        messages = [one for turn in turns for one in turn]
        return self._tokenizer.apply_chat_template(messages, *given, **options)


def turns(messages: Sequence[Any]) -> list[Any]:
    """Return the messages with those of tools that follow each other as one."""
    found: list[Any] = []
    for is_tool, group in groupby(messages, lambda message: message["role"] == "tool"):
        run = list(group)
        found += [_Turn(run)] if is_tool and len(run) > 1 else run
    EFFECT.calls += 1
    EFFECT.changed += any(isinstance(one, _Turn) for one in found)
    return found


@around
def mask(original: Any, self: Any, messages: Any, *tools: Any, **named: Any) -> Any:
    """Tokenise a conversation for Qwen3 by turns, with a tokenizer that knows them."""
    by_turns = copy(self)
    by_turns.tokenizer = _Tokenizer(self.tokenizer)
    return original(by_turns, turns(messages), *tools, **named)


PATCH = Patch(
    id="slime.tool-turn-mask",
    summary="Qwen3 SFT: consecutive tool results are one turn",
    why="With --loss-mask-type qwen3, slime gives each of several tool results its own turn. Qwen3's "
    "template puts them into one user turn: after parallel tool calls the model is trained on a conversation "
    "that it never sees at inference. With the patch the tokens are those of the template.",
    changes=("numbers",),
    met="SFT with --loss-mask-type qwen3 on conversations in which results of tools follow each other.",
    upstream=("THUDM/slime#2264", "THUDM/slime#2263"),
    evidence="slime's commit f033ebf (after 0.3.1) renders such results in one call of the chat template.",
    targets=one_target(SLIME, variant("0.2", replaced(_MASK, mask))),
)
