"""`slime.value-temperature`: the critic's values are not divided by the rollout's temperature.

slime takes the rows of the responses out of logits and of values with one function, which divides both. It is
wrapped, since `get_values` may be another patch's: what has one entry a row is a value, and is taken out at a
temperature of 1.
"""

from __future__ import annotations

from overlay.compat.projects import SLIME
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches.slime.value_temperature.fix import make_responses

_ROWS = "slime.backends.megatron_utils.loss:get_responses"

PATCH = Patch(
    id="slime.value-temperature",
    summary="The critic's values are not divided by the rollout's temperature",
    why=(
        "slime 0.2 divides the output of the critic's head by --rollout-temperature, as if values were "
        "logits, in the rollout and in the value loss. At 0.5 the head has to learn half the return, with "
        "twice the gradient, and a critic that was trained elsewhere is read as twice what it says. With the "
        "patch a value is what the head puts out, as in slime 0.3. A critic that has been trained under "
        "slime 0.2 at another temperature than 1 has learnt the divided value: for a job that resumes from "
        "it, values jump by that factor. Such a job leaves the patch out."
    ),
    changes=("numbers",),
    met="PPO's critic (--advantage-estimator ppo) with a --rollout-temperature other than 1.",
    upstream=("THUDM/slime#1928",),
    evidence=(
        "slime's commit d9d149d (#1928, in 0.3.0) leaves the temperature out for values, and says so in a "
        "docstring."
    ),
    targets=one_target(
        SLIME,
        variant(
            "0.2.0",
            replaced(_ROWS, make_responses),
        ),
        variant(
            "0.2.2",
            replaced(_ROWS, make_responses),
        ),
        tells=("slime.backends.megatron_utils.loss:get_values",),
    ),
)
