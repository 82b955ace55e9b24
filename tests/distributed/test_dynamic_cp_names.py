"""megatron.dynamic-cp-names on real gloo ranks: each gap of a release, and that it is closed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from checks import SEED
from rank_rows import answers, rows_of, run_once

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.real,
    pytest.mark.nightly("the last release stands for the others", megatron=("0.16.1", "0.17.1", "0.18.2")),
]

RELEASES = ("0.16.1", "0.17.1", "0.18.2", "0.19.2")
TOLERANCE = 1e-5

on_releases = pytest.mark.parametrize("megatron", RELEASES, indirect=True)


#: On which Transformer Engine is stood in for.
CASES = "overlay.patches.megatron.dynamic_cp_names.contract.cases"


def found(megatron: Path, case: str, *, overlay: bool) -> list[dict[str, Any]]:
    """Return what each of two ranks found on a release, or raised."""
    return answers(run_once(2, CASES, overlay=overlay, release=megatron, te=True), case)


def closed(megatron: Path, case: str) -> list[dict[str, Any]]:
    """Return what each rank found with overlay, where nothing may raise."""
    return rows_of(run_once(2, CASES, overlay=True, release=megatron, te=True), case)


def assert_right(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        assert row["worst"] < TOLERANCE, (SEED, row)
        if row["source"]:
            assert row["reported"] == pytest.approx(row["loss"], rel=TOLERANCE)


# --- 1: the keyword ---


@on_releases
def test_verl_s_engine_refuses_a_release_as_it_is(megatron: Path) -> None:
    for row in found(megatron, "start", overlay=False):
        assert row["error"] == "AssertionError"
        assert "dynamic_context_parallel is not supported" in row["message"]


@on_releases
def test_verl_s_engine_lays_out_groups_of_every_size(megatron: Path) -> None:
    for rank, row in enumerate(closed(megatron, "start")):
        assert row["groups"] == {"1": [rank], "2": [0, 1]}


@on_releases
def test_static_context_parallelism_beside_it_is_refused(megatron: Path) -> None:
    for row in found(megatron, "start, static too", overlay=True):
        assert row["error"] == "NotImplementedError"
        assert "context_parallel_size=2" in row["message"]


# --- 2 to 4: the groups ---


@on_releases
def test_groups_talk_once_when_they_are_made(megatron: Path) -> None:
    for overlay, sizes in ((False, []), (True, [2])):
        for row in found(megatron, "warm up", overlay=overlay):
            assert row["sizes"] == sizes


@on_releases
def test_groups_are_forgotten_with_the_rest(megatron: Path) -> None:
    for overlay, left in ((False, [2]), (True, [])):
        for row in found(megatron, "destroy", overlay=overlay):
            assert row["left"] == left


# --- 5: rotary positions ---


@on_releases
def test_a_release_cannot_turn_the_rows_of_a_shared_sequence(megatron: Path) -> None:
    for row in found(megatron, "rope", overlay=False):
        assert row["error"] == "RuntimeError"
        assert "split_with_sizes" in row["message"]


@on_releases
def test_rows_of_a_shared_sequence_are_turned_by_their_positions(megatron: Path) -> None:
    assert_right(closed(megatron, "rope"))


@on_releases
def test_a_release_tells_a_fused_kernel_the_wrong_group_and_nothing_raises(megatron: Path) -> None:
    for row in found(megatron, "rope, fused", overlay=False):
        assert row["told"] == [1]
        # The gradient has another direction, and not only verl's wrong size: by how much depends on what is
        # drawn, and is thousands of times what rounding does.
        assert row["turned"] > 100 * TOLERANCE, (SEED, row)
    for row in found(megatron, "te, shared", overlay=False):
        assert row["turned"] < TOLERANCE


@on_releases
def test_a_fused_kernel_is_told_the_group_of_the_micro_batch(megatron: Path) -> None:
    rows = closed(megatron, "rope, fused")
    assert_right(rows)
    assert [row["told"] for row in rows] == [[2], [2]]


# --- 6 to 8: Transformer Engine's attention ---


@on_releases
def test_a_release_leaves_the_attention_in_the_group_of_the_last_micro_batch(megatron: Path) -> None:
    for row in found(megatron, "te, shared", overlay=False):
        assert (row["set"], row["left in"]) == ([2], 2)
    for row in found(megatron, "te, alone", overlay=False):
        assert row["set"] == [1]  # a group of one rank, where there should be none
    for row in found(megatron, "after an error", overlay=False):
        assert row["same"] == [False, False]


@on_releases
def test_the_attention_is_set_to_the_group_of_the_micro_batch_and_back(megatron: Path) -> None:
    for case, groups in (("te, shared", [2, 1]), ("te, alone", [0, 1])):
        rows = closed(megatron, case)
        assert_right(rows)
        assert [(row["set"], row["left in"]) for row in rows] == [(groups, 1)] * 2
    # Its own recomputation sets it once more, to the same group.
    rows = closed(megatron, "te, recomputed")
    assert_right(rows)
    assert [row["set"] for row in rows] == [[2, 1, 2]] * 2


@on_releases
def test_every_group_is_put_back_after_an_error(megatron: Path) -> None:
    for row in closed(megatron, "after an error"):
        assert row == {"raised": True, "same": [True, True]}


@on_releases
def test_the_stream_of_the_exchange_is_made_if_megatron_has_not(megatron: Path) -> None:
    for row in found(megatron, "te, no stream", overlay=False):
        assert "needs a stream" in row["message"]
    assert_right(closed(megatron, "te, no stream"))


# --- 9: the settings ---


@on_releases
def test_a_release_does_not_know_a_setting_of_verl_s(megatron: Path) -> None:
    for row in found(megatron, "settings", overlay=False):
        assert row["error"] == "TypeError"
        assert "unexpected keyword argument 'dynamic_context_parallel'" in row["message"]
    for row in closed(megatron, "settings"):
        assert row == {"ranks": 2, "cap": 6}


# --- and if it is not there ---


@on_releases
def test_nothing_starts_unless_rotary_positions_are_known_to_be_right(megatron: Path) -> None:
    for row in closed(megatron, "not confirmed"):
        for attempt in ("start", "train"):
            assert row[attempt][0] == "NotImplementedError"
            assert "rotary positions" in row[attempt][1]
            assert "megatron.dynamic-cp-names" in row[attempt][1]


@pytest.mark.parametrize("megatron", ["0.15.3"], indirect=True)
def test_before_0_16_verl_s_engine_itself_says_no(megatron: Path) -> None:
    for overlay in (False, True):
        for row in found(megatron, "start", overlay=overlay):
            assert row["error"] == "AssertionError"
            assert "dynamic_context_parallel is not supported" in row["message"]


@pytest.mark.xfail(strict=True, reason="once this passes, megatron.dynamic-cp-names has had its day")
@pytest.mark.parametrize("megatron", [RELEASES[-1]], indirect=True)
def test_upstream_alone_has_what_verl_asks_for(megatron: Path) -> None:
    for row in found(megatron, "start", overlay=False):
        assert row["groups"]["2"] == [0, 1]
