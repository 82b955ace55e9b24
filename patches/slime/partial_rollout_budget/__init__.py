"""`slime.partial-rollout-budget`: a response that is resumed gets the tokens that it has left, and no more.

The functions that generate a sample are wrapped, that of the streaming rollout too. They get the parameters
of the call with fewer new tokens; the caller's own stay as they are.
"""

from __future__ import annotations

from overlay.compat.projects import SLIME
from overlay.patch import Absent, Patch, Removal, fixed, known, not_affected, one_target, replaced, variant
from overlay.patches.slime.partial_rollout_budget.fix import make_generate

_GENERATE = "slime.rollout.sglang_rollout:generate"
_STREAMING = "slime.rollout.sglang_streaming_rollout"

PATCH = Patch(
    id="slime.partial-rollout-budget",
    summary="A resumed partial rollout gets the tokens it has left, not the whole budget again",
    why=(
        "With --partial-rollout slime aborts responses that are not done and resumes them in the next "
        "rollout. slime 0.3 asks for --rollout-max-response-len new tokens each time, so that a response "
        "that is resumed twice may be three times as long as it may be, which then has to fit into a "
        "micro-batch. With the patch it gets what it has left, as in slime 0.2 and after 0.3.1; one that has "
        "nothing left, or is too long already, ends as truncated."
    ),
    changes=("numbers", "memory"),
    met=(
        "--partial-rollout, or a generate function that calls slime's own for a sample that has a response "
        "already."
    ),
    upstream=("THUDM/slime#2261",),
    remove=Removal(
        when="a release takes the response that there is off the budget",
        test="tests/real/test_contracts.py::test_upstream_alone_keeps_the_contract",
    ),
    targets=one_target(
        SLIME,
        not_affected(
            "before 0.3",
            "<0.2.5.dev0",
            known(
                _GENERATE,
                *("7db343dff215", "df7737c62770", "1ffe84d3319f", "08c8cbc35e91", "d882b8ca6bac"),
                "8d8742c34018",
            ),
            reason="slime takes the response that there is off the budget before 0.3",
        ),
        # Commits before 0.3.0, of which 286750aa3 is one.
        variant(
            "286750aa3",
            ">=0.2.3.dev0,<0.3.0.dev0",
            replaced(_GENERATE, make_generate, "a022997a24b4"),
            Absent(site=_STREAMING),
        ),
        variant(
            "0.3",
            ">=0.2.4.dev0,<0.3.2.dev0",
            replaced(_GENERATE, make_generate, "a022997a24b4", "314bb03bfe3c"),
            replaced(f"{_STREAMING}:generate_streaming", make_generate, "4c529e094e87", "84ed5601c014"),
        ),
        # Commits after the tag v0.3.1, which call themselves 0.3.1 as well.
        fixed(
            "after 0.3.1",
            ">=0.3.1.dev0",
            known(_GENERATE, "e384bbd08b87"),
            reason="slime takes the response that there is off the budget",
        ),
    ),
)
