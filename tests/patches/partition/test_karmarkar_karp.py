"""The same partitions as the upstreams' Karmarkar-Karp, ties and all."""

from __future__ import annotations

from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from command_line import python
from partition_cases import divisors, drawing, drawn_values, functions

from overlay.patches._partition import is_exact, karmarkar_karp

pytestmark = [pytest.mark.real, pytest.mark.quick]

VERL = Path(str(distribution("verl").locate_file("verl/utils/seqlen_balancing.py")))
(UPSTREAM,) = functions(VERL, "karmarkar_karp")


@pytest.mark.parametrize("equal_size", [True, False])
@pytest.mark.parametrize(("most", "cases"), [(12, 3000), (60, 700), (300, 40)])
def test_same_partitions_on_drawn_values(most: int, cases: int, equal_size: bool) -> None:
    draw = drawing(f"values/{most}/{equal_size}")
    for _ in range(cases):
        values = drawn_values(draw, most)
        count = len(values)
        parts = draw.choice(
            [*divisors(count)] if equal_size else [1, 2, 3, count, draw.randint(1, count + 2), -(-count // 5)]
        )
        assert is_exact(values)
        given = list(values)
        found = karmarkar_karp(given, parts, equal_size=equal_size)
        assert given == values
        assert found == UPSTREAM(values, parts, equal_size), (values, parts)


def test_same_partitions_of_hundreds_of_samples_in_nearly_as_many_parts() -> None:
    draw = drawing("many parts")
    values = [max(1, min(16384, int(draw.lognormvariate(7.5, 1)))) for _ in range(700)]
    for parts in (90, 125, 350, 699):
        assert karmarkar_karp(values, parts, equal_size=False) == UPSTREAM(values, parts, False)


@pytest.mark.parametrize(("count", "parts"), [(7, 2), (1, 2), (10, 4)])
def test_the_same_refusal_where_samples_do_not_divide(count: int, parts: int) -> None:
    with pytest.raises(AssertionError) as theirs:
        UPSTREAM([1] * count, parts, True)
    with pytest.raises(AssertionError) as ours:
        karmarkar_karp([1] * count, parts, equal_size=True)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize(("values", "parts"), [([], 1), ([1], 0), ([1, 2], -1)])
@pytest.mark.parametrize("equal_size", [True, False])
def test_nothing_to_divide_is_refused_as_upstream_cannot_do_it_either(
    values: list[int], parts: int, equal_size: bool
) -> None:
    with pytest.raises((IndexError, ZeroDivisionError, AssertionError)):
        UPSTREAM(values, parts, equal_size)
    with pytest.raises(ValueError, match=rf"cannot divide {len(values)} samples into {parts} parts"):
        karmarkar_karp(values, parts, equal_size=equal_size)


@pytest.mark.parametrize(
    ("values", "exact"),
    [
        ([], False),
        ([0, 1, 10**400], True),
        ([True, 2], True),
        ([0.5, 2, 1e250], True),
        ([-1, 2], False),
        ([-0.5], False),
        ([float("nan"), 1.0], False),
        ([float("inf")], False),
        ([1e300, 1.0], False),
        ([10**400, 1.0], False),
        (["1"], False),
        ([None, 1], False),
    ],
)
def test_what_is_exact(values: list[Any], exact: bool) -> None:
    assert is_exact(values) is exact


def test_what_numpy_and_torch_count_with_is_not_exact() -> None:
    import numpy as np
    import torch

    assert not is_exact(np.array([200, 100], dtype=np.uint8))
    assert not is_exact([np.int64(3), 4])
    assert not is_exact(torch.tensor([3.0, 4.0]))
    assert not is_exact(list(torch.tensor([3, 4])))


def test_importing_it_imports_next_to_nothing() -> None:
    code = "import sys; old = {*sys.modules}; import overlay.patches._partition; print(*{*sys.modules} - old)"
    loaded = python("-c", code).stdout.split()
    assert "overlay.patches._partition" in loaded
    foreign = {name for name in loaded if name.partition(".")[0] != "overlay"}
    assert foreign <= {"heapq", "_heapq", "bisect", "_bisect"}
