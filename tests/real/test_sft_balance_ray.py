"""`verl.sft-balance` on verl's SFT trainer and a local Ray cluster: what its contract leaves out.

The contract runs the same program, with overlay and without, and judges the batches. Here it is the setting,
a batch that the ranks do not divide, and a run that is resumed.
"""

from __future__ import annotations

from typing import Any

import pytest
from checks import SEED
from listed_sources import Findings, Listed

from overlay.patches.verl.sft_balance.contract import PROGRAM
from overlay.patches.verl.sft_balance.contract.judge import RUNS, Steps, imbalance, more_even, samples

pytestmark = [
    pytest.mark.real,
    pytest.mark.nightly("the contract runs the same program"),
    pytest.mark.parametrize("version", ["0.7.1", "0.8.0", "0.9.1"]),
]


@pytest.fixture
def found(version: str, listed: Listed, findings: Findings) -> dict[str, Any]:
    """What `trainer_runs.py` of the contract found on one release."""
    ranks = "4" if version == "0.8.0" else "2"
    return findings(listed(f"verl=={version}"), str(PROGRAM), "--seed", SEED, "--ranks", ranks)


def shares(steps: Steps) -> list[Any]:
    return [[share["uids"] for share in step["shares"]] for step in steps]


def test_ranks_get_equal_work_and_the_batch_is_counted_whole(found: dict[str, Any]) -> None:
    for step in found["overlay"]["default"]:
        assert imbalance(step) <= 1.02
        assert imbalance(step, int) <= 1.02
    for name in RUNS:
        for step, upstream in zip(found["overlay"][name], found["plain"][name], strict=True):
            assert step["train/global_tokens"] == upstream["train/global_tokens"]
            for share in step["shares"]:
                assert share["global_token_num"] == upstream["shares"][0]["global_token_num"]


def test_the_setting_is_honoured_and_said_once(found: dict[str, Any]) -> None:
    said = {
        "on": "balance_batch=True, so batches are balanced",
        "absent": "balance_batch is not set, so batches are balanced",
        "off": "balance_batch=False, so batches are not balanced",
    }
    for name, words in said.items():
        assert found["settings"][name]["said"].count("verl.sft-balance") == 1
        assert words in found["settings"][name]["said"]
    on, absent, off = (found["settings"][name]["steps"] for name in said)
    assert shares(on) == shares(absent)
    assert more_even(on, off)
    assert list(map(samples, on)) == list(map(samples, off))


def test_a_batch_that_the_ranks_do_not_divide_is_refused_by_verl(found: dict[str, Any]) -> None:
    odd = {name: end for name, end in found["settings"].items() if name.startswith("batch of ")}
    assert len(odd) == 2
    for end in odd.values():
        assert end["error"]  # an AssertionError of verl's own
        assert set(end["calls"]) == {0}


def test_a_resumed_run_gets_the_same_order(found: dict[str, Any]) -> None:
    whole, resumed = found["settings"]["whole"], found["settings"]["resumed"]
    assert [step["step"] for step in resumed] == [3, 4]
    assert shares(resumed) == shares(whole)[2:]
