"""`verl.turn-separator`: between an answer and what a tool says stands what the chat template puts there."""

from functools import partial, wraps
from typing import Any

from overlay.compat.projects import VERL
from overlay.effect import effect
from overlay.patch import Patch, one_target, replaced, variant

_LOOP = "verl.experimental.agent_loop.tool_agent_loop:ToolAgentLoop"
_ANSWER = "overlay-answer"
#: So many tokens tell where the template begins what was appended.
_HEAD = 3
EFFECT = effect(__name__, "turn", did="put the separator before")


def make_handle_turn(original: Any, module: Any) -> Any:
    """Insert the separator before what the original has appended, as tokens that are not trained on."""

    @wraps(original)
    async def handle_turn(self: Any, agent_data: Any) -> Any:
        said, tokens, own = (
            len(one) for one in (agent_data.messages, agent_data.prompt_ids, agent_data.response_mask)
        )
        state = await original(self, agent_data)
        appended = agent_data.prompt_ids[tokens:]
        EFFECT.calls += 1
        if (
            not appended or not tokens or self.tool_parser_name in ("gpt-oss", "gemma4")
        ):  # in verl's own format
            return state
        find = partial(
            _separator, self, agent_data.prompt_ids[tokens - 1], agent_data.messages[said:], appended
        )
        separator = await self.loop.run_in_executor(None, find)
        # Without room for another token there is no turn that it would separate.
        if separator and len(agent_data.response_mask) + len(separator) < self.response_length:
            EFFECT.changed += 1
            agent_data.prompt_ids[tokens:tokens] = separator
            agent_data.response_mask[own:own] = [0] * len(separator)
            if agent_data.response_logprobs:
                agent_data.response_logprobs[own:own] = [0.0] * len(separator)
        return state

    return handle_turn


def _separator(loop: Any, last: int, messages: list[Any], appended: list[int]) -> list[int]:
    """Return the white space that the template puts between the last token and what was appended.

    Empty if there is none, or if the whole conversation cannot be compared with what was appended.
    """
    renderer = loop.tokenizer if loop.processor is None else loop.processor
    whole = None
    for parts in (False, True):  # some processors take content in parts alone
        before = [("user", "overlay-question"), ("assistant", _ANSWER)]
        begun = [
            {"role": role, "content": [{"type": "text", "text": text}] if parts else text}
            for role, text in before
        ]
        try:
            whole = renderer.apply_chat_template(
                begun + messages,
                add_generation_prompt=True,
                tokenize=False,
                **loop.apply_chat_template_kwargs,
            )
            break
        except Exception:  # noqa: BLE001, S112 -- a template raises what it likes
            continue
    close = loop.tokenizer.decode([last], skip_special_tokens=False)
    head, answer, rest = (whole or "").rpartition(_ANSWER)
    if not answer or not rest.startswith(close):
        return []
    encode = partial(loop.tokenizer.encode, add_special_tokens=False)
    closed, ids = encode(head + answer + close), encode(whole)
    after = ids[len(closed) :]
    if ids[: len(closed)] != closed or closed[-1] != last:
        return []
    starts = (at for at in range(len(after)) if after[at : at + _HEAD] == appended[:_HEAD])
    separator: list[int] = after[: next(starts, 0)]
    return separator if loop.tokenizer.decode(separator, skip_special_tokens=False).isspace() else []


PATCH = Patch(
    id="verl.turn-separator",
    summary="Tool turns are separated from answers as in the chat template",
    why="A model stops at the token that closes its turn. verl's tool agent loop then appends the turn of "
    "the tool, rendered alone, and the white space is lost that the template puts between the two, such as "
    "the line feed of Qwen's. From the first tool call on, the policy is sampled and trained on "
    "conversations that no other inference would show it. With the patch what stands between is what the "
    "template puts there in the whole conversation. It is masked. Where the two cannot be compared nothing "
    "is inserted, and nothing but white space ever is.",
    evidence="The tokens are those of apply_chat_template for the whole conversation. verl 0.9.0 restores "
    "the separator too (#6921).",
    changes=("numbers",),
    met="Rollouts of the tool agent loop with a chat template that separates turns, as those of Qwen do.",
    upstream=("verl-project/verl#6921", "verl-project/verl#6501"),
    targets=one_target(
        VERL,
        variant(
            "0.6 and 0.7",
            replaced(f"{_LOOP}._handle_processing_tools_state", make_handle_turn),
            replaced(f"{_LOOP}._handle_interacting_state", make_handle_turn),
        ),
        variant("0.8", replaced(f"{_LOOP}._handle_processing_tools_state", make_handle_turn)),
    ),
)
