"""megatron.dynamic-cp-names on real gloo ranks: each gap of a release, and what the contract leaves out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checks import SEED
from rank_rows import answers, rows_of, run_once

RELEASES = ("0.16.1", "0.17.1", "0.18.2", "0.19.2")

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.real,
    pytest.mark.nightly("the last release stands for the others", megatron=RELEASES[:-1]),
    pytest.mark.parametrize("megatron", RELEASES, indirect=True),
]

TOLERANCE = 1e-5
#: On which Transformer Engine is stood in for.
CASES = "overlay.patches.megatron.dynamic_cp_names.contract.cases"

#: What each rank finds of a release alone, by case: words of an error, or figures.
GAPS: dict[str, str | dict[str, Any]] = {
    "start": "dynamic_context_parallel is not supported",
    "settings": "unexpected keyword argument 'dynamic_context_parallel'",
    "warm up": {"sizes": []},
    "destroy": {"left": [2]},
    "rope": "split_with_sizes",
    "rope, fused": {"told": [1]},  # the wrong group, and nothing raises
    "te, shared": {"set": [2], "left in": 2},
    "te, alone": {"set": [1]},  # a group of one rank, where there should be none
    "te, no stream": "needs a stream",
}


def ranks(megatron: Path, *, overlay: bool = True) -> dict[str, list[Any]]:
    """Return what two ranks found on a release."""
    return run_once(2, CASES, overlay=overlay, release=megatron, te=True)


def found(megatron: Path, case: str, *, overlay: bool = True) -> list[dict[str, Any]]:
    """Return what each of them found in a case, or raised."""
    return answers(ranks(megatron, overlay=overlay), case)


@pytest.mark.parametrize("case", GAPS)
def test_a_release_alone_has_a_gap(megatron: Path, case: str) -> None:
    """Once one is closed there, the patch has less to do."""
    expected = GAPS[case]
    for row in found(megatron, case, overlay=False):
        if isinstance(expected, str):
            assert expected in row["message"]
        else:
            assert {name: row[name] for name in expected} == expected
    if case == "rope, fused":
        # The gradient has another direction, and not only verl's wrong size.
        assert all(row["turned"] > 100 * TOLERANCE for row in found(megatron, case, overlay=False)), SEED


@pytest.mark.parametrize(("case", "groups"), [("te, recomputed", [2, 1, 2]), ("te, no stream", [2, 1])])
def test_attention_is_in_the_group_of_the_micro_batch(megatron: Path, case: str, groups: list[int]) -> None:
    """Its own recomputation sets it once more, and the stream of the exchange is made if it is missing."""
    for row in rows_of(ranks(megatron), case):
        assert row["worst"] < TOLERANCE, (SEED, row)
        assert row["set"] == groups


def test_static_context_parallelism_beside_it_is_refused(megatron: Path) -> None:
    for row in found(megatron, "start, static too"):
        assert row["error"] == "NotImplementedError"
        assert "context_parallel_size=2" in row["message"]


def test_nothing_starts_unless_rotary_positions_are_known_to_be_right(megatron: Path) -> None:
    for row in found(megatron, "not confirmed"):
        for attempt in ("start", "train"):
            assert row[attempt][0] == "NotImplementedError"
            assert "rotary positions" in row[attempt][1]
            assert "megatron.dynamic-cp-names" in row[attempt][1]
