"""A conversation with tools is, token for token, the one that its chat template makes of it."""

import asyncio
import importlib
import random
from types import SimpleNamespace
from typing import Any

from overlay.model.settings import is_alone
from overlay.patch import Contract
from overlay.testing import with_patches

_MODULE = "verl.experimental.agent_loop.tool_agent_loop"
_MARKS = ("[user]", "[assistant]", "[tool]", "[system]", "[END]", "[OUT]")
_TURN = "{{'[' + m.role + ']' + m.content + '[END]SEPARATOR'}}"
_EACH = "{% for m in messages if m.role %}TURN{% endfor %}{% if add_generation_prompt %}{{BEGIN}}{% endif %}"
_SYSTEM = "{% if messages[0].role != 'system' %}{{'[system]helpful[END]SEPARATOR'}}{% endif %}"
_CHAT = _SYSTEM + _EACH.replace("TURN", _TURN).replace("BEGIN", "'[assistant]'")
_PLAIN = (
    "{% if m.role == 'user' %}{{m.content + ' [/INST]'}}{% elif m.role == 'tool' %}"
    "{{'[tool]' + m.content + '[OUT]'}}{% else %}{{m.content + '[END]'}}{% endif %}"
)
_FIRST = "{% if m.role == 'tool' and loop.first %}{{'[OUT]' + m.content}}{% else %}TURN{% endif %}"
#: Turns that a line feed or two separate, or nothing; one of questions that end in plain text, as those
#: before `[/INST]` do; and one that renders a tool's turn otherwise where that is alone.
TEMPLATES = {
    "line feed": _CHAT.replace("SEPARATOR", "\\n"),
    "two": _CHAT.replace("SEPARATOR", "\\n\\n"),
    "nothing": _CHAT.replace("SEPARATOR", ""),
    "text": _EACH.replace("TURN", _PLAIN).replace("BEGIN", "''"),
    "otherwise": _EACH.replace("TURN", _FIRST.replace("TURN", _TURN))
    .replace("BEGIN", "'[assistant]'")
    .replace("SEPARATOR", "\\n"),
}
#: Where verl alone is right: there is nothing to put in, or nothing to compare with.
LEFT = ("nothing", "text", "otherwise")


def wrong(seed: str) -> str:
    """Return for which template a conversation is another, empty if none is."""
    from overlay.compat.verl_imports import imported

    module = imported(_MODULE, "openai")
    draw = random.Random(seed)
    for name in TEMPLATES:
        # A release that needs no patch may fail there: it is the patch that must not.
        if name in LEFT and is_alone():
            continue
        for logged in (True, False):
            if found := _converse(module, draw, name, logged=logged):
                return f"{name}: {found}"
    return ""


def _converse(module: Any, draw: random.Random, name: str, *, logged: bool) -> str:
    """Return what is wrong with a conversation of a few turns, and with one that has no room left."""
    loop = _loop(module, TEMPLATES[name])
    tokenizer = loop.tokenizer
    messages = [{"role": "user", "content": _words(draw)}]
    data = _data(module, messages)
    data.prompt_ids = tokenizer.encode(_render(tokenizer, messages))
    prompt = len(data.prompt_ids)
    for turn in range(draw.randint(1, 4)):
        answer = _words(draw)
        data.response_ids = tokenizer.encode(answer + "[END]")
        data.prompt_ids += data.response_ids
        data.response_mask += [1] * len(data.response_ids)
        data.response_logprobs += [-1.0] * len(data.response_ids) * logged
        # Until 0.7 somebody may be asked in the place of tools. Of parallel calls each has a turn of its own.
        asked = hasattr(loop, "_handle_interacting_state") and draw.random() < 1 / 3
        loop.answers = [_words(draw) for _call in range(1 if asked else draw.randint(1, 2))]
        data.tool_calls = [
            SimpleNamespace(name="tool", tool_call_id=None, at=at) for at in range(len(loop.answers))
        ]
        messages += [{"role": "assistant", "content": answer}]
        messages += [{"role": "user" if asked else "tool", "content": one} for one in loop.answers]
        state = asyncio.run(_turn(loop, data, asked=asked))
        if state != module.AgentState.GENERATING or data.user_turns != turn + 1:
            return "the rollout ends early"
    if off := _off(tokenizer, name, data, messages, prompt):
        return off
    if data.response_logprobs != ([-1.0 * own for own in data.response_mask] if logged else []):
        return "log-probabilities at other tokens"
    # Without room for the turn nothing is appended, as before.
    before, loop.response_length = list(data.prompt_ids), len(data.response_mask) + 1
    state = asyncio.run(_turn(loop, data))
    full = state == module.AgentState.TERMINATED and data.prompt_ids == before
    return "" if full else "more than there is room for"


def _off(tokenizer: Any, name: str, data: Any, messages: Any, prompt: int) -> str:
    """Return how tokens and mask differ from those of the whole conversation."""
    whole = tokenizer.encode(_render(tokenizer, messages))
    if name != "otherwise" and data.prompt_ids != whole:
        return f"{tokenizer.decode(data.prompt_ids)!r} and not {tokenizer.decode(whole)!r}"
    if name == "otherwise" and "\n[OUT]" in tokenizer.decode(data.prompt_ids):
        return "a separator before what the template does not have there"
    if len(data.response_mask) != len(data.prompt_ids) - prompt:
        return "another mask"
    spoken = [one for one, own in zip(data.prompt_ids[prompt:], data.response_mask, strict=True) if own]
    answers = "".join(one["content"] + "[END]" for one in messages if one["role"] == "assistant")
    return "" if tokenizer.decode(spoken) == answers else "the mask has other tokens than the policy's"


async def _turn(loop: Any, data: Any, *, asked: bool = False) -> Any:
    async def generate_response(*_given: Any, **_named: Any) -> Any:
        return False, loop.answers[0], None, {}

    loop.loop = asyncio.get_running_loop()
    data.interaction, data.interaction_kwargs = SimpleNamespace(generate_response=generate_response), {}
    return await (loop._handle_interacting_state if asked else loop._handle_processing_tools_state)(data)


def _render(tokenizer: Any, messages: list[dict[str, Any]]) -> str:
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def _words(draw: random.Random) -> str:
    """Return words with white space at either end now and then."""
    text = " ".join(draw.choice(("seven", "of", "9", "a\nline", "(x)")) for _ in range(draw.randint(1, 5)))
    return draw.choice(("", " ", "\n")) + text + draw.choice(("", "\n"))


def _data(module: Any, messages: list[dict[str, Any]]) -> Any:
    data = object.__new__(module.AgentData)
    vars(data).update(
        messages=list(messages), image_data=None, video_data=None, metrics={}, request_id="1",
        tools_kwargs={}, response_mask=[], response_logprobs=[], tool_rewards=[], turn_scores=[],
        user_turns=0, assistant_turns=0, extra_fields={},
    )  # fmt: skip
    return data


def _loop(module: Any, template: str) -> Any:
    """Return verl's loop with a tokenizer of bytes, and tools that answer what they are told to."""
    base = importlib.import_module(module.ToolAgentLoop.__mro__[1].__module__)

    class Loop(module.ToolAgentLoop):
        """Without servers."""

        def __init__(self) -> None:
            self.answers: list[str] = []

        async def _call_tool(self, call: Any, *_given: Any) -> Any:
            return SimpleNamespace(text=self.answers[call.at], image=None, video=None), None, {}

    loop: Any = Loop()
    loop.tokenizer = tokenizer = _tokenizer(template)
    vars(loop).update(
        processor=None, tool_parser_name="hermes", max_parallel_calls=4, response_length=10**6,
        apply_chat_template_kwargs={}, rollout_config=SimpleNamespace(prompt_length=10**6),
        enable_continuous_token=False, dataset_cls=None,
    )  # fmt: skip
    if hasattr(base, "initialize_system_prompt"):
        loop.system_prompt = base.initialize_system_prompt(tokenizer)
    else:  # until 0.6
        loop.system_prompt = tokenizer.apply_chat_template([{}], tokenize=True)
    if hasattr(base, "initialize_turn_separator"):  # of 0.9
        loop.turn_separator = base.initialize_turn_separator(tokenizer)
    return loop


def _tokenizer(template: str) -> Any:
    """Return a real tokenizer, of bytes, that makes lists of its templates, as those of transformers 4."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    class Lists(PreTrainedTokenizerFast):
        def apply_chat_template(self, *given: Any, return_dict: bool = False, **named: Any) -> Any:
            return super().apply_chat_template(*given, return_dict=return_dict, **named)

    bytes_ = {one: at for at, one in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    model = Tokenizer(models.BPE(vocab=bytes_, merges=[]))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    tokenizer = Lists(tokenizer_object=model, additional_special_tokens=list(_MARKS))
    tokenizer.eos_token = "[END]"  # noqa: S105 -- a token of text
    tokenizer.chat_template = template
    return tokenizer


CONTRACT = Contract(check=with_patches(wrong, "verl.turn-separator"), before=("verl.protocol",))
