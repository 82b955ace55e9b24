"""What is said where responses are rejected only after their advantages were computed."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from overlay.patches.verl.rejected_in_groups import compute_advantage

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("correction", "count"),
    [
        ({"rollout_rs": "seq_mean_k1", "bypass_mode": True}, 1),
        ({"rollout_rs": "seq_mean_k1", "bypass_mode": False}, 0),
        ({"rollout_rs": None, "bypass_mode": True}, 0),
        (None, 0),
    ],
)
def test_a_patch_that_comes_too_late_says_so(
    correction: Any, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    np = pytest.importorskip("numpy")
    batch = {"response_mask": torch.ones(2, 3)}
    data = SimpleNamespace(batch=batch, non_tensor_batch={"uid": np.array(["a", "a"], dtype=object)})
    compute = compute_advantage(lambda data, *_, **__: data, ModuleType("verl"))
    assert compute(data, "grpo", config={"rollout_correction": correction}) is data
    assert compute(data, "grpo") is data
    assert capsys.readouterr().err.count("does nothing with rollout_correction.bypass_mode") == count
