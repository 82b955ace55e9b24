"""Layers that are given a tensor parallel group of their own, and use that of Megatron's state all the same.

What docs/known-issues.md says of findings 4 and 6 of NVIDIA/Megatron-LM#7452.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from contract_tests import SEED

from checks import UPSTREAMS
from overlay.compat.ranks.findings import megatron_ranks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.real,
    pytest.mark.nightly("a newer release stands for it", version=("0.17.1",)),
]


@pytest.fixture(scope="module", params=["0.17.1", "0.19.2"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def ranks(version: str, release: Callable[[str], Path]) -> dict[str, list[dict[str, Any]]]:
    folder = release(f"megatron-core=={version}")
    return megatron_ranks(SEED, UPSTREAMS / "own_groups_cases.py", "", release=folder, ranks=4)


def test_cross_attention_sums_its_gradients_over_the_group_of_the_state(
    ranks: dict[str, list[dict[str, Any]]],
) -> None:
    for found in ranks["cross attention"]:
        assert min(found.values()) > 1e-2, (SEED, found)


def test_multi_token_prediction_splits_activations_over_the_group_of_the_state(
    ranks: dict[str, list[dict[str, Any]]],
) -> None:
    found = ranks["recomputation of multi-token prediction"]
    assert [one["told"] for one in found] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert [one["own"] for one in found] == [[0, 2], [1, 3], [0, 2], [1, 3]]
