"""whiten-over-cp on four gloo ranks: slime's own advantages, and its fork's, with CP 1, 2 and 4."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from checks import SEED
from slime_ranks import MILES, folder, on_ranks

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["folder"]

pytestmark = [pytest.mark.distributed, pytest.mark.real]

#: Of advantages of about one, float32's.
TOLERANCE = 1e-5


@pytest.mark.parametrize("revision", ["v0.3.1", MILES])
def test_advantages_are_those_of_one_process(folder: Path) -> None:
    found = dict(on_ranks(folder, "whiten_cases", "whiten-over-cp"))
    masked = found.pop("masked, cp2")
    assert {rank["error"] for rank in masked} == {"ValueError"}
    assert all("loss masks of all ranks are empty" in rank["message"] for rank in masked)
    assert len(found) == 3 * 4 * 2
    for name, ranks in found.items():
        for rank in ranks:
            assert rank is not None, (SEED, name)
            assert "message" not in rank, (SEED, name, rank)
            assert rank["finite"]
            assert rank["error"] <= TOLERANCE, (SEED, name, rank)
    # There were ranks without a token.
    assert any(rank["tokens"] == 0 for rank in found["late, cp4, rewards"])
