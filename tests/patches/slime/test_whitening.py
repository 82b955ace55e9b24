"""Whitening by sums over all ranks, on drawn values of ranks that are not there."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from overlay.patches._whitening import over_all, whitened
from overlay.patches.slime.whiten_over_cp import EFFECT

pytest.importorskip("torch")
import torch


def on_ranks(values: list[Any], masks: list[Any], *, shift_mean: bool, epsilon: float) -> list[Any]:
    """Return what each rank makes of its values."""
    meeting = threading.Barrier(len(values), timeout=60)
    given: list[Any] = [None] * len(values)

    def rank(index: int) -> Any:
        def all_reduce(own: Any) -> None:
            given[index] = own.clone()
            meeting.wait()
            own.copy_(torch.stack(given).sum(0))
            meeting.wait()

        return whitened(values[index], masks[index], all_reduce, shift_mean=shift_mean, epsilon=epsilon)

    with ThreadPoolExecutor(len(values)) as pool:
        return list(pool.map(rank, range(len(values))))


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


def test_a_deviation_that_is_small_against_the_values_is_not_lost() -> None:
    """Two rewards of 3,000 that are 0.001 apart: their squares differ in a float64's last digits."""
    low = 3000 + torch.rand(2, dtype=torch.float64)
    values = [torch.stack([one, one + 0.001]) for one in low]
    for pair in values:
        (found,) = on_ranks([pair], [torch.ones(2)], shift_mean=True, epsilon=0.0)
        wanted = torch.tensor([-(0.5**0.5), 0.5**0.5], dtype=torch.float64)
        torch.testing.assert_close(found, wanted, rtol=1e-8, atol=0)


def test_one_value_has_no_deviation_and_none_is_an_error() -> None:
    (found,) = on_ranks([torch.ones(1)], [torch.ones(1)], shift_mean=True, epsilon=1e-8)
    assert found.tolist() == [0.0]
    with pytest.raises(ValueError, match="loss masks of all ranks are empty"):
        on_ranks([torch.ones(2)], [torch.zeros(2)], shift_mean=True, epsilon=1e-8)


@pytest.mark.parametrize("sharing", [1, 2])
def test_only_where_ranks_share_sequences_something_was_off(sharing: int) -> None:
    EFFECT.clear()
    whiten = over_all(lambda _sums: None, lambda: sharing, EFFECT)
    assert whiten(torch.tensor([1.0, 3.0]), torch.ones(2)).sum() == 0
    assert EFFECT.read() == {"calls": 1, "changed": sharing - 1, "empty": 0}
