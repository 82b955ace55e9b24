"""Ranks that are replaced, join and leave: nobody waits in a comparison that the others have behind them."""

from __future__ import annotations

from typing import Any

import pytest
from checks import RANKS, SEED
from rank_rows import run_once

pytestmark = [pytest.mark.distributed, pytest.mark.real]

TOLERANCE = 1e-5
#: As in `generation_cases`, which imports an upstream. The last is told two things.
WORLDS = {"0": (0, 1), "1": (0, 2), "2": (0, 1, 2, 3), "3": (1, 3), "4": (1,), "5": (0, 1), "6": (0, 2)}


def results() -> dict[str, list[Any]]:
    program = str(RANKS / "generations_main.py")
    return run_once(4, RANKS / "generation_cases.py", program=program, timeout=240)


@pytest.mark.parametrize("number", list(WORLDS)[:-1])
def test_a_rank_that_is_new_is_answered(number: str) -> None:
    rows = results()[number]
    for process in WORLDS[number]:
        row = rows[process]
        assert row is not None, (number, process, rows)
        assert "error" not in row, row
        assert max(row["worst"]) < TOLERANCE, (SEED, row)


def test_a_new_rank_that_was_told_something_else_is_found_out_on_every_rank() -> None:
    number = list(WORLDS)[-1]
    rows = results()[number]
    for process in WORLDS[number]:
        assert rows[process]["error"] == "ValueError"
        assert "OVERLAY_DCP differs between ranks" in rows[process]["message"]
