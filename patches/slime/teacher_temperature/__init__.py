"""`slime.teacher-temperature`: the teacher of on-policy distillation is scored at the rollout's temperature.

slime puts the temperature into the request to the teacher's server itself. The function that sends it runs as
it is, with a session that writes the request with the other temperature.
"""

from __future__ import annotations

from overlay.compat.projects import SLIME
from overlay.patch import Absent, Patch, Removal, fixed, known, not_affected, one_target, replaced, variant
from overlay.patches.slime.teacher_temperature.fix import make_reward

_REWARD = "slime.rollout.on_policy_distillation:reward_func"

PATCH = Patch(
    id="slime.teacher-temperature",
    summary="The teacher of on-policy distillation is scored at the rollout's temperature",
    why=(
        "On-policy distillation compares log-probabilities of student and teacher. slime computes the "
        "student's at --rollout-temperature, and asks the teacher's server for its own at temperature 0, "
        "which stands for greedy sampling and not for the rollout's temperature. The divergence is then one "
        "of two distributions at different temperatures, and is not 0 even if student and teacher are the "
        "same model. With the patch the teacher is asked at --rollout-temperature, as in slime after 0.3.1. "
        "The teacher that Megatron runs (--opd-type megatron) is scored at that temperature already."
    ),
    changes=("numbers",),
    met=(
        "On-policy distillation with a teacher on a server of its own, at a --rollout-temperature other than "
        "1."
    ),
    upstream=("THUDM/slime#2085",),
    remove=Removal(
        when="a release asks the teacher at --rollout-temperature",
        test="tests/real/test_contracts.py::test_upstream_alone_keeps_the_contract",
    ),
    targets=one_target(
        SLIME,
        not_affected(
            "before 0.2.3",
            "<0.2.3.dev0",
            Absent(site="slime.rollout.on_policy_distillation"),
            reason="slime has on-policy distillation only among its examples, before 0.2.3",
        ),
        variant(
            "0.2.3",
            ">=0.2.2.dev0,<0.3.2.dev0",
            replaced(_REWARD, make_reward, "b20ddc59403e", "ef2380c10da4"),
        ),
        # Commits after the tag v0.3.1, which call themselves 0.3.1 as well.
        fixed(
            "after 0.3.1",
            ">=0.3.1.dev0",
            known(_REWARD, "ec137632a649"),
            reason="slime asks the teacher at --rollout-temperature",
        ),
    ),
)
