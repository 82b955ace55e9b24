"""slime.masked-gae on four gloo ranks: slime's own advantages by PPO, with CP 1, 2 and 4."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from checks import SEED
from slime_ranks import folder, on_ranks

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["folder"]

pytestmark = [pytest.mark.distributed, pytest.mark.real]

#: Of advantages of about one, over hundreds of tokens: float32's.
TOLERANCE = 1e-4
#: How many ways of splitting tokens a release has beside its default: `--qkv-format bshd` and
#: `--allgather-cp`.
OTHERS = {"v0.2.4": 2, "v0.3.1": 1}


@pytest.mark.nightly("v0.3.1 stands for it", revision=("v0.2.4",))
@pytest.mark.parametrize("revision", OTHERS)
def test_advantages_are_those_of_the_trained_tokens(folder: Path, revision: str) -> None:
    found = on_ranks(folder, "masked_gae_cases", "masked-gae", "whiten-over-cp")
    assert len(found) == 12 + 2 * OTHERS[revision]
    for name, ranks in found.items():
        for rank in ranks:
            assert rank is not None, (SEED, name)
            assert "message" not in rank, (SEED, name, rank)
            assert rank["error"] <= TOLERANCE, (SEED, name, rank)
