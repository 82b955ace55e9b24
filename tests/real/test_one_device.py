"""Several ranks on one GPU through gloo, with CUDA tensors, streams and asynchronous copies as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import one_device
import pytest
from checks import SEED

if TYPE_CHECKING:
    from pathlib import Path

torch: Any = pytest.importorskip("torch")

#: Seven kinds of logits, whitening, dynamic CP and the agreement.
CASES = 10


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_ranks_that_share_a_gpu_compute_what_one_process_does(tmp_path: Path) -> None:
    judged(one_device.run(tmp_path, SEED, "cuda"))


def test_the_program_of_those_ranks_is_right_on_the_cpu(tmp_path: Path) -> None:
    judged(one_device.run(tmp_path, SEED, "cpu"))


def judged(found: list[dict[str, Any]]) -> None:
    assert len(found) == 2
    for row in found:
        assert len(row) == CASES
        for name, error in row.items():
            assert error is None or error <= one_device.TOLERANCE, (name, row, f"seed {SEED}")
