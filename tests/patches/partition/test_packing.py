"""Packing under a cap, and the bound below which nothing holds it, against trying everything."""

from __future__ import annotations

import itertools

import pytest
from partition_cases import drawing, drawn_lengths, naive_first_fit, totals

from overlay.patches._partition import capped_partitions, fewest_parts, holds
from overlay.patches._partition.packing import (
    best_fit_decreasing,
    first_fit,
    first_fit_decreasing,
    least_parts,
    worst_fit,
)


def optimum(lengths: list[int], cap: int) -> int:
    """Return the least number of parts that hold the cap, by trying all."""
    order = sorted(lengths, reverse=True)
    best = len(order)

    def place(at: int, rooms: list[int]) -> None:
        nonlocal best
        if at == len(order):
            best = min(best, len(rooms))
        elif len(rooms) < best:
            for room in {room for room in rooms if room >= order[at]}:
                rest = list(rooms)
                rest.remove(room)
                place(at + 1, [*rest, room - order[at]])
            # What is over the cap leaves no room, not even for nothing.
            place(at + 1, [*rooms, cap - order[at] if order[at] <= cap else -1])

    place(0, [])
    return best


def test_the_fewest_parts_of_small_inputs_are_at_most_one_from_the_optimum() -> None:
    draw = drawing("optimum")
    exact = 0
    for _ in range(1500):
        lengths, cap = drawn_lengths(draw, 9)
        best = optimum(lengths, cap)
        assert least_parts(lengths, cap) <= best, (lengths, cap)
        found = fewest_parts(lengths, cap)
        assert best <= found <= best + 1, (lengths, cap)
        exact += found == best
    print(f"{exact} of 1500 were optimal")
    assert exact > 1400


@pytest.mark.parametrize(
    ("lengths", "cap", "least"),
    [
        ([5, 5], 10, 1),
        ([5, 5, 1], 10, 2),
        # Over half the cap: each needs its own. Over a third: no more than two in a part.
        ([6, 6, 6], 10, 3),
        ([4, 4, 4, 4, 4], 11, 3),
        ([25, 1], 10, 2),
        ([0, 0], 10, 0),
    ],
)
def test_bound(lengths: list[int], cap: int, least: int) -> None:
    assert least_parts(lengths, cap) == least


@pytest.mark.parametrize(("most", "cases"), [(12, 1500), (60, 300)])
def test_packing_holds_the_cap_and_every_sample(most: int, cases: int) -> None:
    draw = drawing(f"packing/{most}")
    worst = 0
    for _ in range(cases):
        lengths, cap = drawn_lengths(draw, most)
        fitted = first_fit(lengths, cap)
        assert fitted == naive_first_fit(lengths, cap)
        costs = draw.choice([lengths, [draw.randint(0, 9) for _ in lengths]])
        number = draw.choice([len(fitted), draw.randint(1, len(lengths))])
        spread = worst_fit(lengths, number, cap, costs)
        assert spread == naive_worst_fit(lengths, number, cap, costs), (lengths, number, cap, costs)
        worst += spread is not None
        best, longest_first = best_fit_decreasing(lengths, cap), first_fit_decreasing(lengths, cap)
        assert best == naive_best_fit(lengths, cap), (lengths, cap)
        order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
        in_order = naive_first_fit([lengths[index] for index in order], cap)
        assert longest_first == [[order[place] for place in part] for part in in_order], (lengths, cap)
        for parts in (fitted, best, longest_first, spread or fitted):
            assert all(parts)
            assert holds(parts, lengths, cap), (lengths, cap)
            assert sorted(itertools.chain(*parts)) == list(range(len(lengths)))
    assert worst > cases / 3


def naive_best_fit(lengths: list[int], cap: int) -> list[list[int]]:
    """Best fit, longest first, by looking at every part for every sample."""
    parts: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        rooms = [(cap - sum(lengths[one] for one in part), place) for place, part in enumerate(parts)]
        fitting = [pair for pair in rooms if pair[0] >= lengths[index]]
        if fitting:
            parts[min(fitting)[1]].append(index)
        else:
            parts.append([index])
    return parts


def test_first_fit_longest_first_may_need_fewer_parts_than_all_others() -> None:
    lengths = [12, 5, 3, 8, 14, 16, 26, 15, 24, 4, 23]
    needed = [len(pack(lengths, 50)) for pack in (first_fit, best_fit_decreasing, first_fit_decreasing)]
    assert needed == [4, 4, 3]
    assert fewest_parts(lengths, 50) == 3
    assert totals(capped_partitions(lengths, 3, 50), lengths) == [50, 50, 50]


def naive_worst_fit(lengths: list[int], parts: int, cap: int, costs: list[int]) -> list[list[int]] | None:
    """Worst fit by looking at every part for every sample."""
    partitions: list[list[int]] = [[] for _ in range(parts)]
    for index in sorted(range(len(lengths)), key=lambda index: (lengths[index] <= cap, -costs[index], index)):
        fitting = [
            place
            for place, part in enumerate(partitions)
            if (sum(lengths[one] for one in part) + lengths[index] <= cap if part else True)
            and not any(lengths[one] > cap for one in part)
        ]
        if not fitting:
            return None
        totals_and_numbers = [
            (sum(costs[one] for one in partitions[place]), len(partitions[place]), place) for place in fitting
        ]
        partitions[min(totals_and_numbers)[-1]].append(index)
    return partitions
