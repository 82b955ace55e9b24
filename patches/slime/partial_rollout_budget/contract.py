"""A response that slime resumes is asked for the tokens that it has left, and ends where there are none."""

import asyncio
import contextlib
import importlib.util
import itertools
import random
from types import SimpleNamespace
from typing import Any

from overlay.model.settings import is_alone
from overlay.patch import Contract
from overlay.testing import as_without, with_patches


class _Sent(Exception):  # noqa: N818 -- what is sent is no error
    """Ends a generation with what it would have sent to the engine."""


def _modules() -> tuple[Any, list[str]]:
    """Return slime's module of rollouts, with the engine stood in for, and the paths of what generates."""
    from overlay.compat.slime_on_cpu import imported

    def sent(*_args: Any, **_options: Any) -> Any:
        payload = next(one for one in (*_args, *_options.values()) if isinstance(one, dict))
        raise _Sent(payload)

    def state(_args: Any) -> Any:
        return SimpleNamespace(
            aborted=False,
            semaphore=contextlib.AsyncExitStack(),
            dp_rank_context=contextlib.nullcontext,
            tokenizer=None,
            processor=None,
        )

    module = imported("slime.rollout.sglang_rollout")
    module.post, module.GenerateState, module._prepare_prompt_ids = sent, state, lambda *_: [1, 2, 3]
    paths = [""]
    if importlib.util.find_spec("slime.rollout.sglang_streaming_rollout"):
        streaming = imported("slime.rollout.sglang_streaming_rollout")
        streaming.http_utils = SimpleNamespace(_http_client=SimpleNamespace(stream=sent))
        streaming.GenerateState, streaming._prepare_prompt_ids = state, lambda *_: [1, 2, 3]
        paths.append("slime.rollout.sglang_streaming_rollout.generate_streaming")
    return module, paths


def _asked(
    module: Any, path: str, used: int, budget: int, *, partial: bool, resumed: bool = True
) -> tuple[int, float, Any]:
    """Return how many tokens slime asks for after `used`, at which temperature, and the sample's status."""
    from overlay.compat.slime_on_cpu.reward_groups import Unset

    status = module.Sample.Status
    tokens = [1, 2, 3] + [4] * used
    sample = module.Sample(prompt="p", tokens=tokens, response="x" * used, response_length=used, reward=1.0)
    sample.status = status.ABORTED if resumed else status.PENDING
    args = Unset(partial_rollout=partial, custom_generate_function_path=path or None)
    try:
        asyncio.run(module.generate_and_rm(args, sample, {"max_new_tokens": budget, "temperature": 0.5}))
    except _Sent as ended:
        sampling = ended.args[0]["sampling_params"]
        return sampling["max_new_tokens"], sampling["temperature"], sample.status
    return 0, 0.5, sample.status


def wrong(seed: str) -> str:
    """Return which response gets more or fewer tokens than it has left."""
    module, paths = _modules()
    draw = random.Random(seed)
    budget = draw.randint(10, 99)
    # Too long already: slime after 0.3.1, which needs no patch, stops at such a response.
    longer = [] if is_alone() else [budget + 5]
    lengths = (0, draw.randint(1, budget - 1), budget, *longer)
    # Fully asynchronous rollouts resume what was aborted without --partial-rollout too.
    for path, used, partial in itertools.product(paths, lengths, (True, False)):
        asked, temperature, status = _asked(module, path, used, budget, partial=partial)
        wanted = max(budget - used, 0)
        ended = status == module.Sample.Status.TRUNCATED
        if asked != wanted or temperature != 0.5 or ended != (wanted == 0):
            return (
                f"{path or 'generate'}: {asked} tokens after {used} of {budget}, which leave {wanted}, "
                f"with partial_rollout={partial}"
            )
    return ""


#: Tokens of each turn of the generate function below, and of all its turns.
_TURN, _ALL = 300, 1000


async def several_turns(args: Any, sample: Any, sampling_params: Any) -> Any:
    """Stand for a user's generate function that keeps a budget of its own over several turns."""
    from slime.rollout import sglang_rollout

    turn = {**sampling_params, "max_new_tokens": min(_TURN, _ALL - sample.response_length)}
    return await sglang_rollout.generate(args, sample, turn)


def alike(seed: str) -> str:
    """Ask as slime does for a function with its own budget, whatever calls it, and for a fresh sample."""
    module, paths = _modules()
    own, used = f"{__name__}.{several_turns.__name__}", random.Random(seed).randint(1, 99)
    cases = [
        (own, after, _ALL, partial, resumed)
        for after in (0, 300, 600, 900)
        for partial in (True, False)
        for resumed in (True, False)
    ]
    cases += [(path, 0, 100, partial, False) for path in paths for partial in (True, False)]
    # A rollout function of one's own that asks slime's for each turn: nothing was aborted.
    cases += [(path, used, 100, partial, False) for path in paths for partial in (True, False)]
    return as_without(
        lambda: [_asked(module, *case[:3], partial=case[3], resumed=case[4]) for case in cases]
    )()


_CHECK = with_patches(wrong, "slime.partial-rollout-budget")
CONTRACT = Contract(check=_CHECK, alike=alike, before=("torch", "ray", "transformers"))
