"""Context parallel ranks with different numbers of tokens get the gradient of one process."""

from __future__ import annotations

from overlay.compat.contracts.rank_cases import RankCases, within
from overlay.patch import Contract

# Relative, of a gradient in float32.
CASES = RankCases("megatron.masked-loss-cp", "the gradient is not that of one process", within(1e-5))
wrong = CASES.wrong

CONTRACT = Contract(check=CASES.check, starts=True)
