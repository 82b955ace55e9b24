"""Models that dynamic context parallelism refuses (on ranks: `test_dynamic_cp_breadth`)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from overlay.patches._dynamic_cp.refusals import refuse_training

PAIR = {"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2}


def refused(**settings: Any) -> str:
    """Return why the training of a model with these settings is refused, empty if it is not."""
    try:
        refuse_training(SimpleNamespace(**settings))
    except NotImplementedError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("kind", "weight", "expected"),
    [
        ("aux_loss", 0.01, True),
        ("seq_aux_loss", 0.01, True),
        ("global_aux_loss", 0.01, True),
        ("aux_loss", 0, False),
        ("aux_loss", None, False),
        ("none", 0.01, False),
        ("sinkhorn", 0.01, False),
        (None, 0.01, False),
        ([], 0.01, False),
        (["aux_loss", "seq_aux_loss"], [0.0, 0.0], False),
        (["aux_loss", "seq_aux_loss"], [0.0, 0.1], True),
        (("aux_loss", "seq_aux_loss"), (0.1, 0.0), True),
        (["none", "seq_aux_loss"], 0.1, True),
        (["none", "seq_aux_loss"], [0.1, 0.0], False),
    ],
)
def test_a_balancing_loss_with_a_weight(kind: Any, weight: Any, expected: bool) -> None:
    router = {"moe_router_load_balancing_type": kind, "moe_aux_loss_coeff": weight}
    found = refused(num_moe_experts=4, **router)
    assert ("balances experts" in found) is expected
    assert not refused(num_moe_experts=None, **router)  # Megatron's default is "aux_loss", experts or none


@pytest.mark.parametrize("experts", [None, 4])
@pytest.mark.parametrize("weight", [None, 0.0, 0.1])
@pytest.mark.parametrize("per_token", [False, True])
def test_a_z_loss_per_token(experts: Any, weight: Any, per_token: bool) -> None:
    settings = {"num_moe_experts": experts, "moe_z_loss_coeff": weight, "calculate_per_token_loss": per_token}
    assert bool(refused(**settings)) is bool(experts and weight and per_token)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (PAIR, True),
        ({**PAIR, "batch_p2p_comm": False}, True),
        ({**PAIR, "overlap_p2p_comm": True}, False),
        ({**PAIR, "pipeline_model_parallel_size": 4}, False),
        ({**PAIR, "virtual_pipeline_model_parallel_size": None}, False),
    ],
)
def test_two_pipeline_ranks_with_virtual_stages(settings: dict[str, Any], expected: bool) -> None:
    assert bool(refused(**settings)) is expected


def test_a_model_that_says_nothing_of_it_is_not_refused() -> None:
    assert not refused()
