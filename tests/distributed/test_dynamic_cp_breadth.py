"""Dynamic context parallelism beyond a dense model in float32, on real gloo ranks, against one process.

`breadth_cases` says what is run: verl's engine on megatron-core as installed. The ranks are forked.
"""

from __future__ import annotations

from typing import Any

import pytest
from checks import RANKS, SEED
from rank_rows import rows_of, run_once

pytestmark = [pytest.mark.distributed, pytest.mark.real]

#: Relative, of every parameter's gradient or weight, of every output, and of the loss: float32's.
TOLERANCE = 1e-5

MIXED = {4: [2, 1, 1], 8: [4, 1, 1, 1, 1]}


def on_ranks(case: str, world: int = 4) -> list[dict[str, Any]]:
    """Return what each rank found in a case that all of them must have come back from."""
    found = rows_of(run_once(world, RANKS / "breadth_cases.py"), case)
    for result in found:
        if "plans" in result:
            assert all(plan == MIXED[world] for plan in result["plans"])
            assert result["plans"]
    return found


def assert_right(found: list[dict[str, Any]], tolerance: float = TOLERANCE) -> None:
    """Hold every parameter's gradient, and the loss that is reported, to one process in float64."""
    assert sum(result["source"] for result in found) == 1
    for result in found:
        assert result["worst"] < tolerance, (SEED, result)
        if result["loss everywhere"] is not None:  # not the last pipeline stage
            assert result["loss everywhere"] == pytest.approx(result["loss"], rel=tolerance), (SEED, result)
        if result["source"]:
            assert result["reported"] == pytest.approx(result["loss"], rel=tolerance), (SEED, result)


@pytest.mark.parametrize(
    ("world", "case"),
    [
        (4, "experts, uniform"),
        (4, "experts, alone"),
        (4, "experts, mixed"),
        (8, "experts, uniform"),
        (8, "experts, mixed"),
        (4, "adapters"),
        (4, "by number"),
        (4, "interleaved, sft"),
    ],
)
def test_gradients_and_the_loss_are_those_of_one_process(world: int, case: str) -> None:
    assert_right(on_ranks(case, world))


def test_ranks_that_torchrun_starts_find_the_same() -> None:
    """Each imports for itself, as those of a real job."""
    cases = RANKS / "dynamic_cp_cases.py"
    assert_right(rows_of(run_once(2, cases, torchrun=True, only=("mixed",)), "mixed"))


@pytest.mark.parametrize("case", ["experts, outputs", "interleaved, outputs"])
def test_outputs_are_those_of_one_process_in_order(case: str) -> None:
    collected = 0
    for result in on_ranks(case):
        for kind in ("with loss", "without loss"):
            if kind not in result:
                continue  # not the last pipeline stage
            collected += 1
            assert result[kind]["error"] < TOLERANCE, (SEED, result)
            assert result[kind]["lengths"] == result["lengths"]
    assert collected == {"experts, outputs": 8, "interleaved, outputs": 4}[case]


def test_stages_were_interleaved_with_both_sizes() -> None:
    seen = [[part["size"] for part in result["seen"]] for result in on_ranks("interleaved, sft")]
    # Each of four micro-batches is split once for each of a rank's two stages.
    assert [sorted(sizes) for sizes in seen] == [[1] * 4 + [2] * 4] * 4


def test_a_micro_batch_of_one_sequence_is_shared_by_all_ranks() -> None:
    for result in on_ranks("by number"):
        assert [part["size"] for part in result["seen"]] == [4] * 5


def test_a_z_loss_is_the_mean_over_ranks_of_the_mean_over_their_tokens() -> None:
    found = on_ranks("experts, z-loss")
    assert_right(found)
    for result in found:
        assert result["apart"] > 100 * TOLERANCE  # from the gradient without it


def test_bfloat16_is_as_near_to_the_truth_as_one_process_in_bfloat16() -> None:
    found = on_ranks("bfloat16")
    for result in found:
        rounding = result["rounding"]
        assert 1e-4 < rounding < 0.1  # or it would not be a measure
        # Two runs with roundings of the same size, in another order.
        assert result["error"] < 2 * rounding, (SEED, result)
    assert sum(result["source"] for result in found) == 1
    for result in found:
        assert result["loss everywhere"] == pytest.approx(result["loss"], rel=2 * result["rounding"])


@pytest.mark.parametrize("model", ["dense", "experts", "adapters"])
def test_three_steps_of_the_distributed_optimizer_end_at_the_weights_of_one_process(model: str) -> None:
    for result in on_ranks(f"steps, {model}"):
        assert result["optimizer"] == "DistributedOptimizer"
        assert result["buckets"] > 1  # so that some are reduced while the backward pass goes on
        assert result["moved"] > 0.05, "the weights have hardly moved"
        assert result["worst"] < TOLERANCE, (SEED, result)
        assert result["still"], "a frozen weight has moved"
        assert len(result["losses"]) == len(result["norms"]) == 3
        for seen, true in (*result["losses"], *result["norms"]):
            assert seen == pytest.approx(true, rel=TOLERANCE), (SEED, result)
        assert all(norm > result["clip"] for _, norm in result["norms"])  # so that each step is clipped
