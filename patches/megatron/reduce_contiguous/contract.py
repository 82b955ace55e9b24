"""Two ranks add up tensors of any strides, forward and backward, as float64 arithmetic on one does."""

from __future__ import annotations

from overlay.compat.contracts.rank_cases import RankCases, within
from overlay.patch import Contract

# Of sums in float64 of two terms of about one.
CASES = RankCases("megatron.reduce-contiguous", "the sum over ranks is wrong of a tensor", within(1e-12))
wrong = CASES.wrong

CONTRACT = Contract(check=CASES.check, starts=True)
