"""Auxiliary losses give a router the gradient of one process, and report its losses, in every layout."""

from __future__ import annotations

from typing import Any

from overlay.compat.contracts.rank_cases import RankCases
from overlay.patch import Contract

#: Relative, of a gradient and of a loss in float32.
TOLERANCE = 1e-4


def _off(row: dict[str, Any]) -> list[str]:
    """Return what is not that of one process: the gradient, and what is reported."""
    figures = {"error": "", "reported": ", as reported"}
    return [said for figure, said in figures.items() if not row[figure] < TOLERANCE]


CASES = RankCases(
    "megatron.moe-aux-scale",
    "the router's gradient, or what is reported, is not that of one process",
    _off,
    # A mean of ranks' means, which have different numbers of tokens.
    left="z_loss, per token, padded, as reported",
)
wrong = CASES.wrong

CONTRACT = Contract(check=CASES.check, starts=True)
