"""verl.dynamic-cp-loss on real gloo ranks: verl's engine and losses, Megatron's model, schedule and DDP.

Every run is held against one process in float64. The tolerance is that of float32, in which they compute.
What upstream alone does, `test_demo.py` shows; two ranks are the contract's.
"""

from __future__ import annotations

from typing import Any

import pytest
from checks import RANKS, SEED
from rank_rows import answers, rows_of, run_once

pytestmark = [pytest.mark.distributed, pytest.mark.real, pytest.mark.quick]

#: The smallest in which a subgroup of several ranks is not all of them.
WORLD = 4
TOLERANCE = 1e-6
CASES = RANKS / "dynamic_cp_cases.py"

SFT = [
    *(f"fresh/{index}" for index in range(4)),
    "mixed",
    "pairs",
    "one sequence",
    "fewer sequences than ranks",
    "ranks with padding only",
    "ranks without loss tokens",
    "per token loss",
    "per token loss, tokens told",
    "token budget",
    "after too long",
]
PPO = [
    "ppo token-mean",
    "ppo seq-mean-token-sum",
    "ppo seq-mean-token-mean",
    "ppo per token loss",
    "ppo entropy and KL",
]
MODEL_PARALLEL = ["pipeline", "tensor", "sequence"]


def on_ranks(case: str) -> list[dict[str, Any]]:
    """Return what each rank found in a case that all of them must have come back from."""
    return rows_of(run_once(WORLD, CASES), case)


def loss_of(result: dict[str, Any]) -> Any:
    """Return the true loss, to be compared within the tolerance, relative to the size of its terms."""
    return pytest.approx(result["loss"], rel=0, abs=TOLERANCE * result.get("size", result["loss"]))


def assert_right(found: list[dict[str, Any]]) -> None:
    """Hold a training run's gradient, and the loss that is reported, to the reference."""
    for result in found:
        assert result["error"] < TOLERANCE, (SEED, result)
        assert result["model outputs"] == []
        if result["loss everywhere"] is not None:
            assert result["loss everywhere"] == loss_of(result), (SEED, result)
        if result["source"]:
            assert result["reported"] == loss_of(result), (SEED, result)
    assert sum(result["source"] for result in found) == 1


@pytest.mark.parametrize("case", SFT)
def test_gradient_and_loss_are_those_of_one_process(case: str) -> None:
    found = on_ranks(case)
    assert_right(found)
    for result in found:
        assert {part["size"] for part in result["seen"]} <= {1, 2, 4}
        assert all(part["sequences"] for part in result["seen"])


def test_sizes_are_mixed_over_micro_batches() -> None:
    for result in on_ranks("mixed"):
        assert {part["size"] for part in result["seen"]} == {1, WORLD}


def test_the_token_budget_is_shared_by_all_ranks_and_kept_on_each() -> None:
    found = on_ranks("token budget")
    tokens = sum(found[0]["case"]["lengths"])
    for result in found:
        # Upstream made one micro-batch for every 12 tokens, whatever the number of ranks.
        assert len(result["seen"]) == -(-tokens // (12 * WORLD))
        assert all(part["tokens"] <= 12 * part["size"] for part in result["seen"])


@pytest.mark.parametrize("case", PPO)
def test_policy_gradient_and_its_metrics_are_those_of_one_process(case: str) -> None:
    found = on_ranks(case)
    assert_right(found)
    for result in found:
        assert result["pg_loss"] == loss_of(result)
        assert 0 < result["clipped"] < 1  # the clipping is part of what was compared
        assert result["values"] == 2 * WORLD
        assert result["clipped"] == found[0]["clipped"]


@pytest.mark.parametrize("case", ["outputs", "outputs, pairs", "outputs, dynamic micro-batches"])
def test_outputs_are_those_of_one_process_in_order(case: str) -> None:
    assert_outputs(on_ranks(case))


def assert_outputs(found: list[dict[str, Any]]) -> None:
    """Hold the outputs of a forward pass to the reference, on every rank that has any."""
    having = [result for result in found if "with loss" in result]
    assert having
    for result in having:
        for kind in ("with loss", "without loss"):
            assert result[kind]["error"] < TOLERANCE, (SEED, result)
            assert result[kind]["lengths"] == result["lengths"]
            assert result[kind]["dtype"] == "torch.float32"
            assert result[kind]["names"] == ["log_probs", "sum_pi_squared"]
            assert result[kind]["squares"] == having[0]["with loss"]["squares"]
        assert sum(result["with loss"]["losses"]) == pytest.approx(result["loss"], rel=TOLERANCE)
        assert set(result["without loss"]["losses"]) == {1.0}


def test_one_rank_is_the_source_of_outputs() -> None:
    assert_roles(on_ranks("roles"))


def assert_roles(found: list[dict[str, Any]]) -> None:
    """Hold the roles to: one source, which is the first data parallel rank, in a group of its own."""
    assert [result["source"] for result in found] == [result["first"] for result in found]
    assert sum(result["source"] for result in found) == 1
    assert {result["group"] for result in found} == {1}


def test_training_merges_reports_once_and_collects_no_outputs() -> None:
    for result in on_ranks("collectives in training"):
        assert result["counted"] == {"all_gather_object": 1}
        assert result["model outputs"] == []


@pytest.mark.parametrize("kind", ["", *MODEL_PARALLEL])
def test_a_sequence_too_long_is_an_error_on_every_rank(kind: str) -> None:
    ranks = WORLD if not kind else WORLD // 2
    for result in answers(run_once(WORLD, CASES), f"{kind}/too long".lstrip("/")):
        assert result["error"] == "ValueError"
        for part in (f"{4 * ranks + 1} tokens", f"W={ranks}", "max_seqlen_per_dp_cp_rank=4", "Raise"):
            assert part in result["message"]


@pytest.mark.parametrize(
    ("setting", "error", "way_out"),
    [
        ("fused, engine", "NotImplementedError", "use_fused_kernels=False"),
        ("fused, batch", "NotImplementedError", "use_fused_kernels=False"),
        ("padded", "NotImplementedError", "use_remove_padding=True"),
        ("static", "NotImplementedError", "context_parallel_size=1"),
        ("no cap", "ValueError", "max_seqlen_per_dp_cp_rank"),
        ("cap 0", "ValueError", "max_seqlen_per_dp_cp_rank"),
        ("value model", "NotImplementedError", "dynamic_context_parallel=False for the critic"),
        ("value head", "NotImplementedError", "dynamic_context_parallel=False for the critic"),
        ("mtp", "NotImplementedError", "mtp.enable=False"),
        ("replay", "NotImplementedError", "router_replay.mode"),
        ("distillation", "NotImplementedError", "without top-k"),
        ("mtp, model", "NotImplementedError", "mtp_num_layers=0"),
        ("mla", "NotImplementedError", "multi-latent attention"),
        ("balanced", "NotImplementedError", "moe_router_load_balancing_type='none'"),
        ("linear", "NotImplementedError", "linear or sparse attention"),
        ("vision", "NotImplementedError", "dynamic_context_parallel=False"),
    ],
)
def test_what_cannot_be_right_is_refused_on_every_rank(setting: str, error: str, way_out: str) -> None:
    for result in on_ranks("refusals"):
        assert result[setting][0] == error
        assert way_out in result[setting][1]


def test_without_dynamic_context_parallelism_nothing_changes() -> None:
    for result in on_ranks("off"):
        assert result["error"] < TOLERANCE
        assert result["losses"]
        assert result["gradients"]
        assert result["outputs"]


@pytest.mark.parametrize("kind", MODEL_PARALLEL)
def test_with_model_parallelism_gradient_loss_and_outputs_are_those_of_one_process(kind: str) -> None:
    assert_right(on_ranks(f"{kind}/mixed"))
    assert_right(on_ranks(f"{kind}/after too long"))
    assert_outputs(on_ranks(f"{kind}/outputs"))
    roles = on_ranks(f"{kind}/roles")
    assert_roles(roles)
    assert {result["sequence parallel"] for result in roles} == {kind == "sequence"}
