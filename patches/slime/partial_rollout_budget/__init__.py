"""`slime.partial-rollout-budget`: a response that is resumed gets the tokens that it has left, and no more.

The functions that generate a sample are wrapped, that of the streaming rollout too. Where slime itself calls
them, they get its parameters with fewer new tokens. A generate function of a user's that calls them keeps its
own budget.
"""

from __future__ import annotations

from overlay.compat.projects import SLIME
from overlay.patch import Absent, Patch, Removal, fixed, known, not_affected, one_target, replaced, variant
from overlay.patches.slime.partial_rollout_budget.fix import make_generate

_GENERATE = "slime.rollout.sglang_rollout:generate"
_STREAMING = "slime.rollout.sglang_streaming_rollout"

PATCH = Patch(
    id="slime.partial-rollout-budget",
    revision=2,
    summary="A resumed partial rollout gets the tokens it has left, not the whole budget again",
    why=(
        "With --partial-rollout slime aborts responses that are not done and resumes them in the next "
        "rollout. slime 0.3 asks for --rollout-max-response-len new tokens each time, so that a response "
        "that is resumed twice may be three times as long as it may be, which then has to fit into a "
        "micro-batch. With the patch it gets what it has left, as in slime 0.2 and after 0.3.1; one that has "
        "nothing left, or is too long already, ends as truncated. A generate function of one's own that "
        "calls slime's gets what it asks for, as without the patch."
    ),
    changes=("numbers", "memory"),
    met="--partial-rollout with slime's own generate function, or its streaming one.",
    upstream=("THUDM/slime#2261",),
    evidence=(
        "slime's commit 26e859a (#2261, after 0.3.1) takes the response that there is off the budget, as "
        "0.2 did."
    ),
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
