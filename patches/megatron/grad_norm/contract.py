"""All ranks clip by the norm of the whole model's gradient, whatever Transformer Engine marked."""

from __future__ import annotations

from overlay.compat.contracts.rank_cases import RankCases, within
from overlay.patch import Contract

#: The last Transformer Engine that marks the weights of grouped experts, and one that does not.
MARKED, UNMARKED = "2.12.0", "2.15.0"
CASES = RankCases(
    "megatron.grad-norm",
    "norm or update is not that of the whole model",
    within(1e-5),  # relative, of norms and updates in float32 whose steps are taken from zero
    te=UNMARKED,
)
wrong = CASES.wrong

CONTRACT = Contract(check=CASES.check, starts=True)
