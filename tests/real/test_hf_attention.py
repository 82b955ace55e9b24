"""slime.hf-attention-gradient on four gloo ranks, with TP and CP of 1, 2 and 4."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from checks import SEED
from slime_ranks import folder, on_ranks

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["folder"]

pytestmark = [pytest.mark.distributed, pytest.mark.real]

#: Of the layer in float64, and of small whole numbers in the type that models are trained in.
TOLERANCES = {"mixing": 1e-10, "bfloat16": 0.0}


@pytest.mark.nightly("v0.3.1 stands for it, and the contract", revision=("v0.2.3",))
@pytest.mark.parametrize("revision", ["v0.2.3", "v0.3.1"])
def test_outputs_and_gradients_are_those_of_one_process(folder: Path) -> None:
    found = on_ranks(folder, "hf_attention_cases", "hf-attention-gradient")
    assert len(found) == 7
    for name, ranks in found.items():
        for rank in ranks:
            assert rank is not None, (SEED, name)
            assert "message" not in rank, (SEED, name, rank)
            assert max(rank["output"], rank["gradient"]) <= TOLERANCES[name.split(",")[0]], (SEED, name, rank)
