"""`slime.async-sample-filter`: fully asynchronous rollouts apply --rollout-sample-filter-path."""

from functools import wraps
from typing import Any

from overlay.compat.projects import SLIME
from overlay.effect import effect
from overlay.patch import Patch, one_target, replaced, variant

_GENERATE = "slime.rollout.fully_async_rollout:generate_rollout_fully_async"
EFFECT = effect(__name__, "rollout", did="filtered the samples of", always=True)


def make_generate(original: Any, module: Any) -> Any:
    """Let the user's filter see the groups of a rollout, as slime's other rollouts do.

    A user's rollout function that calls this one may apply the filter itself.
    """
    own = f"{module.__name__}.{original.__name__}"

    @wraps(original)
    def generate_rollout_fully_async(args: Any, *given: Any, **named: Any) -> Any:
        groups = original(args, *given, **named)  # or it raises: of evaluation it knows nothing
        if args.rollout_sample_filter_path is not None and args.rollout_function_path == own:
            from slime.utils.misc import load_function

            load_function(args.rollout_sample_filter_path)(args, groups)
            EFFECT.changed += 1
        return groups

    return generate_rollout_fully_async


PATCH = Patch(
    id="slime.async-sample-filter",
    summary="Fully asynchronous rollouts apply --rollout-sample-filter-path",
    why="slime's fully asynchronous rollouts accept --rollout-sample-filter-path and never call it: a job "
    "trains on the samples that its filter would have taken out of the loss. With the patch the filter gets "
    "the groups of each rollout, in order, as in slime's other rollouts.",
    changes=("numbers",),
    met="--rollout-sample-filter-path with --rollout-function-path "
    "slime.rollout.fully_async_rollout.generate_rollout_fully_async.",
    upstream=("THUDM/slime#2061",),
    evidence="slime's other rollouts call it at the same point, with the same groups in the same order.",
    targets=one_target(SLIME, variant("0.3", replaced(_GENERATE, make_generate))),
)
