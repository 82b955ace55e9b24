"""`slime.value-temperature`: the critic's values are not divided by the rollout's temperature.

slime takes the rows of the responses out of logits and of values with one function, which divides both. It is
wrapped, since `get_values` may be another patch's: what has one entry a row is a value, and is taken out at a
temperature of 1.
"""

from __future__ import annotations

from overlay.compat.projects import SLIME
from overlay.patch import Absent, Patch, Removal, fixed, known, not_affected, one_target, replaced, variant
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
    remove=Removal(
        version="0.3.0",
        when="slime 0.3.0 takes values out without a temperature",
        test="tests/real/test_contracts.py::test_upstream_alone_keeps_the_contract",
    ),
    targets=one_target(
        SLIME,
        # v0.1.0 calls itself 0.0.1.
        not_affected(
            "0.1",
            "<0.1.0.dev0",
            Absent(site="slime.backends.megatron_utils.loss:get_values"),
            reason="slime has no critic before 0.2",
        ),
        variant(
            "0.2.0",
            ">=0.1.0.dev0,<0.2.2.dev0",
            replaced(_ROWS, make_responses, "87c83fa75c99", "85018937839d"),
        ),
        # v0.2.2; v0.2.3, v0.2.4, which calls itself 0.2.3, and 286750aa3
        variant(
            "0.2.2",
            ">=0.2.1.dev0,<0.3.0.dev0",
            replaced(_ROWS, make_responses, "44844ee20458", "02c0aec8decb"),
        ),
        fixed(
            "0.3",
            ">=0.2.4.dev0",
            known(_ROWS, "fe65d16dfa38", "d8b426e9b477"),
            reason="slime takes values out without a temperature",
        ),
    ),
)
