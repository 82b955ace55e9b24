"""Whitening by sums over all ranks, on drawn values of ranks that are not there."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from overlay.patches._whitening import whitened
from overlay.patches.slime.whiten_over_cp import EFFECT

pytest.importorskip("torch")
import torch


def on_ranks(
    values: list[Any], masks: list[Any], *, shift_mean: bool, epsilon: float, shared: int = 1
) -> list[Any]:
    """Return what each rank makes of its values. `shared`: of so many in a row, each sequence is on all."""
    meeting = threading.Barrier(len(values), timeout=10)
    given: list[Any] = [None] * len(values)

    def rank(index: int) -> Any:
        def all_reduce(own: Any) -> None:
            given[index] = own.clone()
            meeting.wait()
            own.copy_(torch.stack(given).sum(0))
            meeting.wait()

        place = index % shared, shared
        return whitened(
            values[index], masks[index], all_reduce, place, EFFECT, shift_mean=shift_mean, epsilon=epsilon
        )

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


def test_how_far_off_each_place_would_have_been_is_counted() -> None:
    """Four ranks, of which two share a sequence: slime takes the mean over the first and the third."""
    values = [
        torch.randn(count, dtype=torch.float64) + offset for count, offset in ((5, 0), (4, 3), (3, 1), (6, 2))
    ]
    masks = [torch.ones(len(one)) for one in values]
    masks[1][2] = 0
    EFFECT.clear()
    on_ranks(values, masks, shift_mean=True, epsilon=0.0, shared=2)
    kept = [one[mask == 1] for one, mask in zip(values, masks, strict=True)]
    whole = torch.cat(kept)
    theirs = [torch.cat(kept[0::2]), torch.cat(kept[1::2])]
    mean_off = max(abs(float((one.mean() - whole.mean()) / whole.std())) for one in theirs)
    deviation_off = max(abs(float(one.std() / whole.std() - 1)) for one in theirs)
    found = EFFECT.read()
    # Each of the four counts for itself: here all of them are one process.
    assert (found["calls"], found["changed"]) == (4, 4)
    assert found["mean_off"] == pytest.approx(mean_off, rel=1e-9)
    assert found["deviation_off"] == pytest.approx(deviation_off, rel=1e-9)


def test_without_shared_sequences_nothing_was_off() -> None:
    EFFECT.clear()
    on_ranks([torch.randn(3), torch.randn(4)], [torch.ones(3), torch.ones(4)], shift_mean=True, epsilon=0.0)
    assert EFFECT.read() == {"calls": 2, "changed": 0, "empty": 0}
