"""What verl.fast-partitioner takes upon itself, and what it leaves to the original."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from overlay.patches.verl.fast_partitioner import make_partitioner, whole


def divide(values: Any, parts: int = 2, *, equal_size: bool = False) -> Any:
    fast = make_partitioner(lambda *args: ("original", *args), SimpleNamespace())
    return fast(values, parts, equal_size)


@pytest.mark.parametrize("kind", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_integers_are_divided_whether_in_a_list_or_a_tensor(kind: torch.dtype) -> None:
    assert divide([5, 1, 2]) == [[0], [2, 1]]
    assert divide(torch.tensor([5, 1, 2], dtype=kind)) == [[0], [2, 1]]


@pytest.mark.parametrize(
    "values",
    [
        [],
        torch.tensor([], dtype=torch.int64),
        [-1, 2],
        [torch.tensor(3), torch.tensor(2)],
        torch.tensor([3.0, 2.0]),
        torch.tensor([1, 2], dtype=torch.uint8),
        torch.tensor([True, False]),
        torch.tensor([[1, 2], [3, 4]]),
        # Their sum does not fit into what they are counted in, and verl's wraps around.
        torch.tensor([100, 100], dtype=torch.int8),
        torch.tensor([2**62, 2**62]),
    ],
)
def test_everything_else_is_the_originals(values: Any) -> None:
    name, given, parts, equal_size = divide(values, 2, equal_size=True)
    assert name == "original"
    assert given is values
    assert (parts, equal_size) == (2, True)


def test_what_fits_exactly_is_still_whole() -> None:
    assert whole(torch.tensor([100, 27], dtype=torch.int8)) == [100, 27]
    assert whole(torch.tensor([-100, 27], dtype=torch.int8)) == [-100, 27]
