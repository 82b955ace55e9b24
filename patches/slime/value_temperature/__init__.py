"""`slime.value-temperature`: the critic's values are not divided by the rollout's temperature."""

from copy import copy
from functools import wraps
from typing import Any

from overlay.compat.projects import SLIME
from overlay.effect import effect
from overlay.patch import Patch, one_target, replaced, variant

_ROWS = "slime.backends.megatron_utils.loss:get_responses"
EFFECT = effect(__name__, "micro-batch", did="took the values undivided of", always=True)


def make_responses(original: Any, _module: Any) -> Any:
    """Wrap the rows of responses, of logits and of values: `slime.loss-memory` replaces `get_values`."""

    def get_responses(logits: Any, *, args: Any, **given: Any) -> Any:
        # Of values [1, T, 1]: logits have a vocabulary.
        if logits.size(-1) == 1 and args.rollout_temperature != 1.0:
            EFFECT.changed += 1
            args = copy(args)
            args.rollout_temperature = 1.0
        yield from original(logits, args=args, **given)

    return wraps(original)(get_responses)


PATCH = Patch(
    id="slime.value-temperature",
    summary="The critic's values are not divided by the rollout's temperature",
    why="slime 0.2 divides the critic's output by --rollout-temperature, as if values were logits, in the "
    "rollout and in the value loss: at 0.5 the head learns half the return with twice the gradient, and a "
    "critic trained elsewhere is read as twice its value. With the patch a value is the head's output. Leave "
    "it out of a job that resumes a critic that slime 0.2 trained at another temperature than 1.",
    changes=("numbers",),
    met="PPO's critic (--advantage-estimator ppo) with a --rollout-temperature other than 1.",
    upstream=("THUDM/slime#1928",),
    evidence="slime's commit d9d149d (in 0.3.0) takes values without the temperature, as its docstring says.",
    targets=one_target(
        SLIME,
        variant("0.2", replaced(_ROWS, make_responses)),
        tells=("slime.backends.megatron_utils.loss:get_values",),
    ),
)
