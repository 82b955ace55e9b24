"""Every loss that verl 0.8.0 registers, and losses of users, under dynamic context parallelism on gloo ranks.

Each is held against itself in one process and float64: the gradient, the loss that is reported, and every
sum among the metrics.
"""

from __future__ import annotations

from typing import Any

import pytest
from checks import RANKS, SEED
from rank_rows import answers, rows_of, run_once

pytestmark = [pytest.mark.distributed, pytest.mark.real]

WORLD = 4
#: Relative: float32's.
TOLERANCE = 3e-6
SUMS = ["vanilla", "dppo_tv", "dppo_kl", "gspo", "sapo", "gpg", "cispo"]
OTHERS = ["clip_cov", "kl_cov", "geo_mean"]
AGGREGATIONS = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
USERS = ("mean", "scaled mean", "both", "centred", "half", "silent at first", "sum")
#: Kinds of losses, in subgroups of several sizes at once, and some in those of one.
CASES = [
    *(f"{kind}, mixed" for kind in (*SUMS, *OTHERS, "sft", "distillation k3", "distillation k1")),
    *(f"{kind}, 2" for kind in OTHERS),
    *(f"bypass_mode {kind}, mixed" for kind in ("clipped", "reinforce", "normalised")),
    *(f"vanilla {mode}, mixed" for mode in AGGREGATIONS),
    *(f"{kind}, mixed" for kind in ("width", "width geo_mean", "width user", "width one", "per token loss")),
    *(f"user {name}, mixed" for name in USERS),
]
#: With all patches: another may stand around what a loss adds up by.
IN_COMPANY = ("vanilla, mixed", "gspo, mixed", "geo_mean, mixed", "sft, mixed")


def results() -> dict[str, list[Any]]:
    """Return what the ranks found, in all cases."""
    return run_once(WORLD, RANKS / "loss_cases.py", timeout=900.0)


def found_in(case: str) -> list[dict[str, Any]]:
    """Return what each rank found in a case in which none of them may raise."""
    return rows_of(results(), case)


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


@pytest.mark.parametrize("case", CASES)
def test_each_loss_is_that_of_one_process(case: str) -> None:
    found = found_in(case)
    assert_right(found)
    assert all(result["micro-batches"] == 1 + ("width one" not in case) for result in found)


@pytest.mark.parametrize("case", IN_COMPANY)
def test_beside_all_other_patches_each_loss_is_that_of_one_process(case: str) -> None:
    found = rows_of(run_once(WORLD, RANKS / "loss_cases.py", patches="all", only=IN_COMPANY), case)
    assert_right(found)
    is_sum = case.partition(",")[0] in [*SUMS, "sft"]
    assert [result["as a sum"] for result in found] == [is_sum] * WORLD


@pytest.mark.parametrize("name", ["vanilla", "clip_cov", "geo_mean"])
def test_each_loss_is_that_of_one_process_as_micro_batches_are_planned(name: str) -> None:
    found = found_in(f"planned, {name}")
    assert_right(found)
    assert all(result["micro-batches"] > 1 for result in found)


def test_subgroups_are_of_several_sizes_and_sequences_are_dealt_out_unevenly() -> None:
    found = found_in("geo_mean, mixed")
    for micro_batch in zip(*(result["parts"] for result in found), strict=True):
        assert len({size for size, _ in micro_batch}) > 1
    assert len({sequences for result in found for _, sequences in result["parts"]}) > 1


@pytest.mark.parametrize("kind", ["clip_cov", "user half"])
def test_all_ranks_draw_the_same(kind: str) -> None:
    found = found_in(f"{kind}, mixed")
    assert found[0]["drawn"]
    assert all(result["drawn"] == found[0]["drawn"] for result in found)


@pytest.mark.parametrize("kind", ["geo_mean", "clip_cov", "user half", "width"])
@pytest.mark.parametrize("parallel", ["tensor", "pipeline"])
def test_with_model_parallelism_a_loss_is_that_of_one_process(parallel: str, kind: str) -> None:
    found = found_in(f"{parallel}/{kind}")
    assert_right(found)
    assert sum(result["source"] for result in found) == 1


def test_an_average_over_all_ranks_is_refused_where_not_all_of_them_have_a_loss() -> None:
    for result in answers(results(), "pipeline/normalised"):
        assert result["error"] == "NotImplementedError"
        assert "rollout_is_batch_normalize=False" in result["message"]


def test_a_loss_that_draws_leaves_the_random_state_as_it_was() -> None:
    for result in found_in("random state"):
        assert result["kept"] == [True, True]


def test_sums_among_metrics_are_those_of_one_process() -> None:
    for result in found_in("user mean, mixed"):
        assert result["sums"]["mean"] == pytest.approx(-result["loss"], rel=TOLERANCE)
    for result in found_in("kl_cov, mixed"):
        assert {"actor/pg_loss"} <= set(result["sums"])


def test_a_loss_is_evaluated_right_without_a_gradient() -> None:
    for result in found_in("evaluation"):
        assert_reported(result)
        assert result["model outputs"] == ["log_probs"]


def test_a_loss_that_is_not_known_is_called_once_for_each_whole_micro_batch() -> None:
    for result in found_in("once for each micro-batch"):
        assert result["calls"] == [WORLD + 3] * result["micro-batches"]
        assert result["all"] == 2 * result["micro-batches"]


def test_ranks_that_have_different_losses_all_say_so() -> None:
    for result in answers(results(), "losses that differ"):
        assert result["error"] == "ValueError"
        assert "rank 0: loss_cases._differing.<locals>.one, not known" in result["message"]
        assert "rank 3: loss_cases._differing.<locals>.other, not known" in result["message"]
    assert_right(found_in("after those that differ"))
