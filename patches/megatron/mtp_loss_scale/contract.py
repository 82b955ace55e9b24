"""Context parallel ranks get the gradient of multi-token prediction, and the loss, of one process."""

from __future__ import annotations

from overlay.compat.contracts.rank_cases import RankCases, within
from overlay.patch import Contract

CASES = RankCases(
    "megatron.mtp-loss-scale",
    "gradient or report is not that of one process",
    within(1e-4),  # relative, of gradients and losses in float32
    te=True,  # main builds none without
)
wrong = CASES.wrong

CONTRACT = Contract(check=CASES.check, starts=True)
