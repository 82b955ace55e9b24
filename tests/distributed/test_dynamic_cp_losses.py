"""Every loss that verl 0.8.0 registers, and losses of users, under dynamic context parallelism on gloo ranks.

Each is held against itself in one process and float64: the gradient, the loss that is reported, and every
sum among the metrics.
"""

from __future__ import annotations

from typing import Any

import pytest
from checks import RANKS, SEED
from loss_layouts import OTHERS, PLANNED, STAGED, layouts_of
from rank_rows import answers, rows_of, run_once

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.real,
    pytest.mark.nightly("4 ranks stand for 2", world=(2,)),
]

#: Relative: float32's.
TOLERANCE = 3e-6
WORLDS = (2, 4)
SUMS = ["vanilla", "dppo_tv", "dppo_kl", "gspo", "sapo", "gpg", "cispo"]
BYPASSES = ["bypass_mode clipped", "bypass_mode reinforce", "bypass_mode normalised"]
AGGREGATIONS = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
KINDS = [
    *SUMS,
    *OTHERS,
    *BYPASSES,
    *(f"vanilla {mode}" for mode in AGGREGATIONS),
    "sft",
    "distillation k3",
    "distillation k1",
    "width",
    "width geo_mean",
    "width user",
    "width one",
    "per token loss",
    *(
        f"user {name}"
        for name in ("mean", "scaled mean", "both", "centred", "half", "silent at first", "sum")
    ),
]


def results(world: int) -> dict[str, list[Any]]:
    """Return what the ranks of a world found, in all cases."""
    return run_once(world, RANKS / "loss_cases.py", timeout=900.0)


def found_in(world: int, case: str) -> list[dict[str, Any]]:
    """Return what each rank found in a case in which none of them may raise."""
    return rows_of(results(world), case)


def assert_right(found: list[dict[str, Any]]) -> None:
    for result in found:
        assert result["error"] < TOLERANCE, (SEED, result)
        assert result["worst"] < 5 * TOLERANCE, (SEED, result)
        assert_reported(result)


def assert_reported(result: dict[str, Any]) -> None:
    # The terms of a policy's loss cancel, and are of the size of one.
    loss = pytest.approx(result["loss"], abs=TOLERANCE, rel=TOLERANCE)
    if result["loss everywhere"] is not None:
        assert result["loss everywhere"] == loss, (SEED, result)
    if result["source"]:
        assert result["reported"] == loss, (SEED, result)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world", WORLDS)
def test_each_loss_is_that_of_one_process_for_every_size(world: int, kind: str) -> None:
    for layout in layouts_of(world, kind):
        found = found_in(world, f"{kind}, {layout}")
        assert_right(found)
        assert all(result["micro-batches"] == 1 + (kind != "width one") for result in found)


def test_these_are_the_losses_that_verl_registers() -> None:
    for registered in results(4)["registered"]:
        assert sorted(registered) == sorted([*SUMS, *OTHERS, "bypass_mode"])


@pytest.mark.parametrize("name", PLANNED)
@pytest.mark.parametrize("how", ["uniform", "mixed"])
@pytest.mark.parametrize("world", WORLDS)
def test_each_loss_is_that_of_one_process_as_micro_batches_are_planned(
    world: int, how: str, name: str
) -> None:
    found = found_in(world, f"planned {how}, {name}")
    assert_right(found)
    assert all(result["micro-batches"] > 1 for result in found)


@pytest.mark.parametrize("world", WORLDS)
def test_sequences_are_dealt_out_unevenly(world: int) -> None:
    found = found_in(world, f"geo_mean, {layouts_of(world, 'geo_mean')[-1]}")
    counts = [sequences for result in found for _, sequences in result["parts"]]
    assert len(set(counts)) > 1


def test_subgroups_are_of_several_sizes() -> None:
    found = found_in(4, "geo_mean, mixed")
    for micro_batch in zip(*(result["parts"] for result in found), strict=True):
        assert len({size for size, _ in micro_batch}) > 1


@pytest.mark.parametrize("world", WORLDS)
def test_verl_adds_up_the_means_of_micro_batches_without_dynamic_context_parallelism_too(world: int) -> None:
    for result in found_in(world, "without"):
        assert result["error"] < TOLERANCE
        assert result["micro-batches"] == 2


@pytest.mark.parametrize("kind", ["clip_cov", "user half"])
@pytest.mark.parametrize("world", WORLDS)
def test_all_ranks_draw_the_same(world: int, kind: str) -> None:
    for layout in layouts_of(world, kind):
        found = found_in(world, f"{kind}, {layout}")
        assert found[0]["drawn"]
        assert all(result["drawn"] == found[0]["drawn"] for result in found)


@pytest.mark.parametrize("kind", ["geo_mean", "clip_cov", "user half", "width"])
@pytest.mark.parametrize("parallel", ["tensor", "pipeline"])
def test_with_model_parallelism_a_loss_is_that_of_one_process(parallel: str, kind: str) -> None:
    for layout in STAGED:
        found = found_in(4, f"{parallel}/{kind}, {layout}")
        assert_right(found)
        assert sum(result["source"] for result in found) == 1


def test_an_average_over_all_ranks_is_refused_where_not_all_of_them_have_a_loss() -> None:
    for result in answers(results(4), "pipeline/normalised"):
        assert result["error"] == "NotImplementedError"
        assert "rollout_is_batch_normalize=False" in result["message"]


def test_a_loss_that_draws_leaves_the_random_state_as_it_was() -> None:
    for result in found_in(4, "random state"):
        assert result["kept"] == [True, True]


@pytest.mark.parametrize("world", WORLDS)
def test_sums_among_metrics_are_those_of_one_process(world: int) -> None:
    for layout in layouts_of(world, "user mean"):
        for result in found_in(world, f"user mean, {layout}"):
            assert result["sums"]["mean"] == pytest.approx(-result["loss"], rel=TOLERANCE)
        for result in found_in(world, f"kl_cov, {layout}"):
            assert {"actor/pg_loss"} <= set(result["sums"])


@pytest.mark.parametrize("world", WORLDS)
def test_a_loss_is_evaluated_right_without_a_gradient(world: int) -> None:
    for result in found_in(world, "evaluation"):
        assert_reported(result)
        assert result["model outputs"] == ["log_probs"]


@pytest.mark.parametrize("world", WORLDS)
def test_a_loss_that_is_not_known_is_called_once_for_each_whole_micro_batch(world: int) -> None:
    for result in found_in(world, "once for each micro-batch"):
        assert result["calls"] == [world + 3] * result["micro-batches"]
        assert result["all"] == 2 * result["micro-batches"]


@pytest.mark.parametrize("world", WORLDS)
def test_ranks_that_have_different_losses_all_say_so(world: int) -> None:
    for result in answers(results(world), "losses that differ"):
        assert result["error"] == "ValueError"
        assert "rank 0: loss_cases._differing.<locals>.one, not known" in result["message"]
        assert f"rank {world - 1}: loss_cases._differing.<locals>.other, not known" in result["message"]
    assert_right(found_in(world, "after those that differ"))
