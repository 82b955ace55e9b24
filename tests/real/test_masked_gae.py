"""slime.masked-gae on four gloo ranks: slime's own advantages by PPO, with CP 1, 2 and 4."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from checks import SEED
from slime_ranks import HANGS, folder, on_ranks

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["folder"]

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.real,
    pytest.mark.by_variant("slime.masked-gae", revision="slime"),
]

RELEASES = (
    "v0.2.0", "v0.2.0.post1", "v0.2.1", "v0.2.2", "v0.2.3", "v0.2.4", "286750aa3", "v0.3.0", "v0.3.1",
)  # fmt: skip
#: Of advantages of about one, over hundreds of tokens: float32's.
TOLERANCE = 1e-4
#: How many ways of splitting tokens a release has beside its default: `--qkv-format bshd` and
#: `--allgather-cp`.
OTHERS = {"v0.2.2": 1, "v0.2.3": 2, "v0.2.4": 2, "286750aa3": 2, "v0.3.0": 2, "v0.3.1": 1}


@pytest.mark.parametrize("revision", RELEASES)
def test_advantages_are_those_of_the_trained_tokens(folder: Path, revision: str) -> None:
    found = on_ranks(folder, "masked_gae_cases", "masked-gae", "whiten-over-cp")
    assert len(found) == 12 + 2 * OTHERS.get(revision, 0)
    for name, ranks in found.items():
        for rank in ranks:
            assert rank is not None, (SEED, name)
            assert "message" not in rank, (SEED, name, rank)
            assert rank["error"] <= TOLERANCE, (SEED, name, rank)


@pytest.mark.nightly("v0.3.1 stands for it", revision=("v0.2.4",))
@pytest.mark.parametrize("revision", ["v0.2.4", "v0.3.1"])
def test_upstream_alone_has_no_token_for_a_reward_under_context_parallelism(
    folder: Path, revision: str
) -> None:
    found = on_ranks(folder, "masked_gae_cases", COLLECTIVE_TIMEOUT=HANGS)
    # What it gets right is what the patch leaves: one rank to a sample, and no token that is masked.
    assert all(rank["error"] <= TOLERANCE for rank in found["whole, cp1"])
    assert all(rank["error"] > TOLERANCE for rank in found["tools, cp1"])
    # The first rank of a sample that has no response token there.
    assert any(rank and rank.get("error") == "IndexError" for rank in found["tools, cp2"])
    # It takes padded samples for others.
    if revision == "v0.2.4":
        assert all(rank["error"] == "AssertionError" for rank in found["penalty, cp2, padded"])
