"""A conversation has the tokens of its chat template, and the mask of what the assistant says."""

import inspect
import random
from collections.abc import Sequence
from typing import Any

from overlay.patch import Contract
from overlay.testing import with_patches


class _Tokenizer:
    """A tokenizer with a token for each character, and a chat template like Qwen3's."""

    def get_added_vocab(self) -> dict[str, int]:
        return {}

    def __call__(self, text: str, **_options: Any) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) for letter in text]}

    def apply_chat_template(self, messages: Sequence[Any], *, tools: Any = None, **options: Any) -> Any:
        text = "".join(part for part, _ in rendered(messages, tools))
        text += "<s>assistant\n" if options.get("add_generation_prompt") else ""
        return self(text)["input_ids"] if options.get("tokenize", True) else text


def rendered(messages: Sequence[Any], tools: Any = None) -> list[tuple[str, int]]:
    """Return the pieces of a conversation and whether each is trained on: tools in a row are one turn."""
    roles = [None, *(message["role"] for message in messages), None]
    pieces = []
    for index, message in enumerate(messages):
        role, content = message["role"], message["content"]
        if role == "tool":
            first, last = roles[index] != "tool", roles[index + 2] != "tool"
            opened = "<s>user\n" if first else "\n"
            pieces.append((f"{opened}<answer>{content}</answer>{'<e>' if last else ''}", 0))
        else:
            listed = f"<tools>{tools}</tools>" if tools and index == 0 else ""
            pieces += [(f"<s>{role}\n", 0), (f"{listed}{content}<e>", int(role == "assistant"))]
    return pieces


def wrong(seed: str) -> str:
    """Return which conversation has other tokens or another mask."""
    from overlay.compat.slime_on_cpu import imported

    module = imported("slime.utils.mask_utils")
    generator = module.MultiTurnLossMaskGenerator(_Tokenizer(), "qwen3")
    knows_tools = "tools" in inspect.signature(generator.get_loss_mask).parameters
    draw = random.Random(seed)
    for results in (1, 2, 3, 1):
        answers = [{"role": "tool", "content": f"{draw.random()}"} for _ in range(results)]
        messages = [
            {"role": "system", "content": "S"},
            {"role": "user", "content": f"{draw.random()}"},
            {"role": "assistant", "content": "CALL"},
            *answers,
            {"role": "assistant", "content": f"{draw.random()}"},
            *answers,
        ]
        options = {"tools": ["T"]} if knows_tools else {}
        pieces = rendered(messages, **options)
        tokens = [ord(letter) for text, _ in pieces for letter in text]
        masks = [mask for text, mask in pieces for _ in text]
        found, mask = generator.get_loss_mask(messages, **options)
        if found != tokens or mask != masks:
            return f"with {results} results in a row: {''.join(map(chr, found))!r}, a mask of {sum(mask)}"
    return ""


CONTRACT = Contract(check=with_patches(wrong, "slime.tool-turn-mask"), before=("ray", "transformers"))
