"""Whitening on one rank, at its degenerate points (on four: tests/real/test_slime_ranks.py)."""

from __future__ import annotations

from typing import Any

import pytest

from overlay.patches._whitening import over_all, whitened
from overlay.patches.slime.whiten_over_cp import EFFECT

pytest.importorskip("torch")
import torch


def alone(values: Any, mask: Any, epsilon: float) -> Any:
    return whitened(values, mask, lambda _sums: None, shift_mean=True, epsilon=epsilon)


def test_a_deviation_that_is_small_against_the_values_is_not_lost() -> None:
    """Two rewards of 3,000 that are 0.001 apart: their squares differ in a float64's last digits."""
    low = 3000 + torch.rand(2, dtype=torch.float64)
    values = [torch.stack([one, one + 0.001]) for one in low]
    for pair in values:
        found = alone(pair, torch.ones(2), 0.0)
        wanted = torch.tensor([-(0.5**0.5), 0.5**0.5], dtype=torch.float64)
        torch.testing.assert_close(found, wanted, rtol=1e-8, atol=0)


def test_one_value_has_no_deviation_and_none_is_an_error() -> None:
    assert alone(torch.ones(1), torch.ones(1), 1e-8).tolist() == [0.0]
    with pytest.raises(ValueError, match="loss masks of all ranks are empty"):
        alone(torch.ones(2), torch.zeros(2), 1e-8)


@pytest.mark.parametrize("sharing", [1, 2])
def test_only_where_ranks_share_sequences_something_was_off(sharing: int) -> None:
    EFFECT.clear()
    whiten = over_all(lambda _sums: None, lambda: sharing, EFFECT)
    assert whiten(torch.tensor([1.0, 3.0]), torch.ones(2)).sum() == 0
    assert EFFECT.read() == {"calls": 1, "changed": sharing - 1, "empty": 0}
