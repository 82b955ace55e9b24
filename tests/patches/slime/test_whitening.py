"""Whitening by sums over all ranks, on drawn values of ranks that are not there."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from overlay.patches._whitening import whitened

pytest.importorskip("torch")
import torch


def on_ranks(values: list[Any], masks: list[Any], *, shift_mean: bool, epsilon: float) -> list[Any]:
    """Return what each rank makes of its values."""
    sums: list[Any] = []

    def all_reduce(own: Any) -> None:
        own.copy_(torch.stack(sums).sum(0))

    how: dict[str, Any] = {"shift_mean": shift_mean, "epsilon": epsilon}
    shares = list(zip(values, masks, strict=True))
    for share in shares:
        with contextlib.suppress(ValueError):  # of a rank that would be alone, and has nothing
            whitened(*share, lambda own: sums.append(own.clone()), **how)
    return [whitened(*share, all_reduce, **how) for share in shares]


@pytest.mark.parametrize("shift_mean", [True, False])
@pytest.mark.parametrize("offset", [0.0, 3000.0])
def test_mean_and_deviation_are_those_of_all_values_that_count(shift_mean: bool, offset: float) -> None:
    counts = (3, 0, 2)
    values = [torch.randn(count) + offset for count in counts]
    masks = [torch.ones(count) for count in counts]
    masks[0][1] = 0
    found = on_ranks(values, masks, shift_mean=shift_mean, epsilon=1e-8)
    exact = torch.cat(values).double()
    counted = exact[torch.cat(masks) == 1]
    wanted = (exact - counted.mean()) / (counted.var() + 1e-8).sqrt()
    if not shift_mean:
        wanted += counted.mean()
    assert [value.dtype for value in found] == [torch.float32] * 3
    torch.testing.assert_close(torch.cat(found).double(), wanted, rtol=1e-5, atol=1e-5)


def test_one_value_has_no_deviation_and_none_is_an_error() -> None:
    (found,) = on_ranks([torch.ones(1)], [torch.ones(1)], shift_mean=True, epsilon=1e-8)
    assert found.tolist() == [0.0]
    with pytest.raises(ValueError, match="loss masks of all ranks are empty"):
        on_ranks([torch.ones(2)], [torch.zeros(2)], shift_mean=True, epsilon=1e-8)
