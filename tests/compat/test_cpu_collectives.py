"""What stands in for NCCL's collectives, with a stand-in for gloo's below it."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
import torch
import torch.distributed as dist

from overlay.compat import cpu_collectives

RANKS = 3


@pytest.fixture
def all_reduce(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what takes the place of `all_reduce`, among three ranks that hold the same."""

    def gloo(tensor: Any, op: Any = None, group: Any = None, async_op: bool = False) -> None:
        assert op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX)
        if op == dist.ReduceOp.SUM:
            tensor.mul_(RANKS)

    monkeypatch.setattr(dist, "get_world_size", lambda group=None: RANKS)
    monkeypatch.setattr(dist, "all_reduce", gloo)
    return next(value for _, name, value in cpu_collectives.replacements() if name == "all_reduce")


@pytest.mark.parametrize(("op", "factor"), [("AVG", 1), ("SUM", RANKS), ("MAX", 1)])
def test_an_average_is_a_sum_that_is_divided(all_reduce: Any, op: str, factor: int) -> None:
    values = torch.randn(5, dtype=torch.float64)
    found = values.clone()
    all_reduce(found, op=getattr(dist.ReduceOp, op))
    torch.testing.assert_close(found, factor * values)


def test_an_average_that_nobody_waits_for_is_refused(all_reduce: Any) -> None:
    with pytest.raises(NotImplementedError, match="synchronously"):
        all_reduce(torch.ones(1), op=dist.ReduceOp.AVG, async_op=True)
