"""A response that is resumed is asked for the tokens that it has left, and ends where there are none."""

from __future__ import annotations

import asyncio
import functools
import importlib
import random
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from overlay.patch import Contract
from overlay.testing import with_patches


class _Sent(Exception):  # noqa: N818 -- what is sent is no error
    """Ends a generation with what it would have sent to the engine."""


def wrong(seed: str, *, longer: bool = False) -> str:
    """Return which response is asked for more or fewer tokens than it has left, empty if none is.

    The engine and the tokenizer are stood in for. With `longer` there is a response that is too long already,
    which slime after 0.3.1 stops at.
    """
    from overlay.compat.slime_on_cpu import imported

    def sent(*_args: Any, **_options: Any) -> Any:
        payload = next(one for one in (*_args, *_options.values()) if isinstance(one, dict))
        raise _Sent(payload)

    module = imported("slime.rollout.sglang_rollout")
    module.post = sent
    functions = [module.generate]
    if importlib.util.find_spec("slime.rollout.sglang_streaming_rollout"):
        streaming = imported("slime.rollout.sglang_streaming_rollout")
        streaming.http_utils = SimpleNamespace(_http_client=SimpleNamespace(stream=sent))
        functions.append(streaming.generate_streaming)
        streaming.GenerateState = MagicMock()
        streaming._prepare_prompt_ids = lambda *_: [1, 2, 3]
    module.GenerateState = MagicMock()
    module._prepare_prompt_ids = lambda *_: [1, 2, 3]
    args = MagicMock(ci_test=False, use_rollout_routing_replay=False)
    draw = random.Random(seed)
    budget = draw.randint(10, 99)
    status = module.Sample.Status
    for function in functions:
        for used in (0, draw.randint(1, budget - 1), budget, *([budget + 5] if longer else [])):
            tokens = [1, 2, 3] + [4] * used
            sample = module.Sample(prompt="p", tokens=tokens, response="x" * used, response_length=used)
            sample.status = status.ABORTED if used else status.PENDING
            try:
                asyncio.run(function(args, sample, {"max_new_tokens": budget, "temperature": 0.5}))
                asked, others = 0, 0.5
            except _Sent as ended:
                sampling = ended.args[0]["sampling_params"]
                asked, others = sampling["max_new_tokens"], sampling["temperature"]
            wanted = max(budget - used, 0)
            if asked != wanted or others != 0.5 or (wanted == 0) != (sample.status == status.TRUNCATED):
                return f"{function.__name__}: {asked} tokens after {used} of {budget}, which leave {wanted}"
    return ""


CONTRACT = Contract(
    check=with_patches(functools.partial(wrong, longer=True), "slime.partial-rollout-budget"),
    before=("torch", "ray", "transformers"),
)
