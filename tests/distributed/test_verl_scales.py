"""Scales of losses on verl's Megatron engine: two data parallel ranks against one process."""

from __future__ import annotations

from typing import Any

import pytest
from checks import RANKS, SEED
from rank_rows import rows_of, run_once

from overlay.patches.verl.moe_aux_scale import contract

pytestmark = [pytest.mark.distributed, pytest.mark.real]

#: Of a gradient in float32.
TOLERANCE = 1e-5
#: The contracts ask of verl's FSDP engine (`verl.critic-loss-scale`) and of one stage (`verl.moe-aux-scale`).
CASES = [
    *(f"critic, {size}" for size in (1, 2, 4)),
    *(f"per token: {how}" for how in ("False", "True", "two stages", "two stages in turn")),
]


def found(case: str, *, overlay: bool = True) -> dict[str, Any]:
    """Return what a rank found with the patches or without."""
    how = {"patches": "verl.critic-loss-scale,verl.moe-aux-scale", "overlay": overlay, "timeout": 200}
    return rows_of(run_once(2, RANKS / "verl_scale_cases.py", **how), case)[0]


@pytest.mark.parametrize("case", CASES)
def test_the_gradient_is_that_of_one_process(case: str) -> None:
    assert found(case)["error"] <= TOLERANCE, SEED


def test_upstream_alone_has_a_gradient_that_grows_with_the_micro_batches_and_ranks() -> None:
    ratios = [found(case, overlay=False)["ratio"] for case in CASES[:3]]
    assert ratios[0] > ratios[1] > ratios[2] > 0
    assert found("per token: False", overlay=False)["error"] <= TOLERANCE
    assert found("per token: True", overlay=False)["ratio"] == pytest.approx(2, rel=TOLERANCE)


def test_losses_of_routers_have_their_weight_on_one_rank_too() -> None:
    assert contract.CASES.wrong(SEED, ranks=1) == [], SEED
