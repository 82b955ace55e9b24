"""loss-memory on gloo ranks: slime's own loss, and its fork's, under each kind of parallelism."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checks import SEED
from listed_sources import Findings, Listed
from slime_ranks import MILES, MILES_RL, folder, on_ranks

__all__ = ["folder"]

pytestmark = [pytest.mark.distributed, pytest.mark.real]

#: Of a log-probability: over the temperature, less the maximum, and less the logarithm of the sum.
ROUNDINGS = 3
#: The last release of each variant, and those of the fork. On each release the contract looks at one rank.
RELEASES = ("v0.2.2", "v0.3.0", MILES_RL, "v0.3.1", MILES)

on_each = pytest.mark.parametrize("revision", RELEASES)
by_the_last = pytest.mark.nightly("the last release and its fork stand for it", revision=RELEASES[:3])


@pytest.fixture
def found(folder: Path) -> dict[str, list[Any]]:
    """What the ranks found with the patch."""
    return on_ranks(folder, "loss_memory_cases", "loss-memory")


@pytest.fixture
def sound(found: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The cases that are not meant to be refused, back from all ranks."""
    wanted = {name: ranks for name, ranks in found.items() if not name.endswith("refused")}
    lost = {name: ranks for name, ranks in wanted.items() if any(not r or "error" in r for r in ranks)}
    assert not lost, f"seed {SEED}: {lost}"
    return wanted


@by_the_last
@on_each
def test_values_losses_and_gradients_are_those_of_one_process_in_float64(sound: dict[str, list[Any]]) -> None:
    """For TP 1, 2, 4 and CP 1, 2, 4 of each kind, with ranks and samples that have no response token."""
    errors = [
        (error / rank["rounding"], name, key)
        for name, ranks in sound.items()
        for rank in ranks
        for key, error in rank.get("errors", {}).items()
    ]
    assert len(errors) > 500
    assert max(errors)[0] <= ROUNDINGS, f"seed {SEED}: {max(errors)}"
    # A NaN is no maximum.
    assert all(error >= 0 for error, _, _ in errors)
    # And without a gradient the values are the same ones.
    assert all(rank.get("same", True) for ranks in sound.values() for rank in ranks)
    rows = {name: [rank["rows"] for rank in ranks if "rows" in rank] for name, ranks in sound.items()}
    assert rows["tp1 cp4 packed one token coef 0.0"].count(0) == 3, "each rank has something to do"


@by_the_last
@on_each
def test_a_step_needs_no_more_than_the_gradient_on_any_rank(sound: dict[str, list[Any]]) -> None:
    peaks = {name: [rank["peak"] for rank in ranks] for name, ranks in sound.items() if "memory" in name}
    assert len(peaks) >= 4
    assert {name: ranks for name, ranks in peaks.items() if max(ranks) > 1.1} == {}


@by_the_last
@pytest.mark.parametrize("revision", ["v0.3.0", MILES_RL, MILES])
def test_allgather_of_padded_sequences_is_refused_on_every_rank(found: dict[str, list[Any]]) -> None:
    refused = {name: ranks for name, ranks in found.items() if name.endswith("refused")}
    assert len(refused) >= 2
    for ranks in refused.values():
        assert {rank["error"] for rank in ranks} == {"ValueError"}
        assert all("qkv_format" in rank["message"] for rank in ranks)


@pytest.mark.parametrize("revision", ["v0.3.1"])
def test_top_p_sets_are_left_to_upstream(sound: dict[str, list[Any]]) -> None:
    found = {name: ranks for name, ranks in sound.items() if name.endswith("top p")}
    assert len(found) >= 4
    assert all(rank["equal"] for ranks in found.values() for rank in ranks)


def test_where_nothing_else_holds_the_logits_the_gradient_takes_their_place(
    listed: Listed, findings: Findings
) -> None:
    """What else the patch needs in one process, its contract measures."""
    sizes = ("--turns", "0", "--tokens", "1024", "--vocabulary", "8192")
    for case, rows in findings(listed("slime==v0.3.1"), "loss_memory_check.py", *sizes)["cases"].items():
        assert "no gradient" in case or rows["in place"]["peak"] <= 0.15, case
