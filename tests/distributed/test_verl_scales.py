"""Scales of losses on verl's Megatron engine: two data parallel ranks against one process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from checks import RANKS, SEED

from overlay.compat.ranks.launcher import run_cases
from overlay.patches.verl.moe_aux_scale.contract import wrong

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.distributed, pytest.mark.real]

#: Of a gradient in float32.
TOLERANCE = 1e-5
CRITICS = ("critic, 1", "critic, 2", "critic, 4")
DISTILLATIONS = ("distillation, forward_kl_topk", "distillation, k1")
PATCHES = "verl.critic-loss-scale,verl.distillation-loss-scale,verl.moe-aux-scale"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, dict[str, Any]]:
    """Return what a rank found with the patch and without."""
    program = RANKS / "verl_scale_cases.py"

    def ranks(folder: Path, **options: Any) -> dict[str, Any]:
        ran = run_cases(2, program, folder, timeout=200, **options)
        return {name: results[0] for name, results in ran.items()}

    return {
        True: ranks(tmp_path_factory.mktemp("patched"), patches=PATCHES),
        False: ranks(tmp_path_factory.mktemp("alone"), overlay=False),
    }


def test_a_critic_has_the_gradient_of_one_process_for_any_cut(found: dict[bool, dict[str, Any]]) -> None:
    errors = {name: found[True][name]["error"] for name in CRITICS}
    assert max(errors.values()) <= TOLERANCE, (SEED, errors)


def test_upstream_alone_has_a_gradient_that_grows_with_the_micro_batches(
    found: dict[bool, dict[str, Any]],
) -> None:
    ratios = [found[False][name]["ratio"] for name in CRITICS]
    assert ratios[0] > ratios[1] > ratios[2] > 0
    assert all(found[False][name]["error"] > 100 * TOLERANCE for name in CRITICS)


def test_a_distillation_has_the_gradient_of_one_process_for_any_cut(
    found: dict[bool, dict[str, Any]],
) -> None:
    for name in DISTILLATIONS:
        row = found[True][name]
        assert (len(row["errors"]), len(row["between cuts"])) == (6, 3)
        assert max(*row["errors"], *row["between cuts"]) <= TOLERANCE, (SEED, name, row)


def test_upstream_alone_has_a_distillation_whose_gradient_depends_on_the_cut(
    found: dict[bool, dict[str, Any]],
) -> None:
    for name in DISTILLATIONS:
        row = found[False][name]
        assert min(*row["errors"], *row["between cuts"]) > 100 * TOLERANCE, (SEED, name, row)


def test_upstream_adds_gradients_up_where_megatron_has_a_loss_per_token(
    found: dict[bool, dict[str, Any]],
) -> None:
    assert found[False]["per token: False"]["error"] <= TOLERANCE
    assert found[False]["per token: True"]["ratio"] == pytest.approx(2, rel=TOLERANCE)


def test_a_loss_per_token_has_the_gradient_of_one_process(found: dict[bool, dict[str, Any]]) -> None:
    errors = {name: row["error"] for name, row in found[True].items() if name.startswith("per token")}
    assert len(errors) == 4
    assert max(errors.values()) <= TOLERANCE, (SEED, errors)


def test_losses_of_routers_have_their_weight_on_one_rank_too() -> None:
    assert wrong(SEED, patched=True, ranks=1) == "", SEED
