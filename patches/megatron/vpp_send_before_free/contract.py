"""An activation that is being sent keeps its memory until the send has been waited for, and no longer."""

from __future__ import annotations

from typing import Any

from overlay.compat.contracts.rank_cases import RankCases
from overlay.patch import Contract

#: Activations on their way at a time: the schedule waits for one when it has sent the next.
AT_A_TIME = 2


def _off(row: dict[str, Any]) -> list[str]:
    """Tell whether an activation was emptied while it was sent, or held for longer than that."""
    return [""] if row["emptied"] or row["left"] or row["most"] > AT_A_TIME else []


CASES = RankCases(
    "megatron.vpp-send-before-free", "an activation is not held as long as it is being sent", _off
)
wrong = CASES.wrong

CONTRACT = Contract(check=CASES.check, starts=True)
