"""`slime.partial-rollout-budget`: a resumed response gets the tokens that it has left, and no more."""

from functools import wraps
from typing import Any

from overlay.compat.projects import SLIME
from overlay.effect import Figure, effect
from overlay.patch import Absent, Patch, one_target, replaced, variant

_GENERATE = "slime.rollout.sglang_rollout:generate"
_STREAMING = "slime.rollout.sglang_streaming_rollout"
EFFECT = effect(
    __name__,
    "request",
    Figure(name="over", says="tokens that these responses could have had once more", unit="tokens"),
    did="shortened",
    then="without it up to {over} over the limit",
)


def left(sample: Any, sampling_params: Any) -> Any:
    """Return the parameters with the tokens that the response has left, 0 if it is longer."""
    EFFECT.calls += 1
    EFFECT.changed += sample.response_length > 0
    EFFECT.over += sample.response_length
    most = max(sampling_params["max_new_tokens"] - sample.response_length, 0)
    return {**sampling_params, "max_new_tokens": most}


def make_generate(original: Any, module: Any) -> Any:
    """Wrap the generation of a sample. A user's generate function that calls it keeps its own budget."""
    own = f"{module.__name__}.{original.__name__}"

    @wraps(original)
    async def generate(args: Any, sample: Any, sampling_params: Any) -> Any:
        called = getattr(sample, "generate_function_path", None) or args.custom_generate_function_path or own
        # What slime resumes was aborted. A user's rollout function that asks turn by turn has its own budget.
        if sample.status == module.Sample.Status.ABORTED and called == own:
            sampling_params = left(sample, sampling_params)
        return await original(args, sample, sampling_params)

    return generate


PATCH = Patch(
    id="slime.partial-rollout-budget",
    summary="A resumed partial rollout gets the tokens it has left, not the whole budget again",
    why="With --partial-rollout slime aborts unfinished responses and resumes them in the next rollout. "
    "Fully asynchronous rollouts resume what a weight update aborts, with or without that option. "
    "slime 0.3 asks for --rollout-max-response-len new tokens each time, so a response resumed twice may be "
    "three times as long as allowed, and still has to fit into a micro-batch. With the patch it gets what it "
    "has left, and ends as truncated if that is nothing. A user's generate function gets what it asks for, "
    "also for a response that was aborted: it may keep a budget of its own.",
    changes=("numbers", "memory"),
    met="--partial-rollout or fully asynchronous rollouts, with slime's own generate function, or its "
    "streaming one.",
    upstream=("THUDM/slime#2261",),
    evidence="slime's commit 26e859a (after 0.3.1) takes the response off the budget, as 0.2 did. Neither "
    "asks for --partial-rollout.",
    targets=one_target(
        SLIME,
        variant("286750aa3", replaced(_GENERATE, make_generate), Absent(site=_STREAMING)),
        variant(
            "0.3",
            *(replaced(site, make_generate) for site in (_GENERATE, f"{_STREAMING}:generate_streaming")),
        ),
    ),
)
