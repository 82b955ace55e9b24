"""Splitting and levelling parts: against brute force, and never for the worse."""

from __future__ import annotations

import itertools
from typing import Any

from partition_cases import drawing, drawn_costs, drawn_lengths, grown, naive_first_fit, totals

from overlay.patches._partition import holds
from overlay.patches._partition.balance import exchange, halves, split_largest
from overlay.patches._partition.level import closer, level


def test_splitting_is_that_of_slime() -> None:
    draw = drawing("split")
    for _ in range(800):
        lengths, cap = drawn_lengths(draw, 25)
        parts = naive_first_fit(lengths, cap)
        count = draw.randint(len(parts), len(lengths))
        assert split_largest(parts, count, lengths) == grown(parts, count, lengths), (lengths, cap, count)


def test_halves_are_never_empty() -> None:
    assert halves([4, 7, 9], [0] * 10) == ([4, 7], [9])
    assert halves([0, 1], [5, 0]) == ([0], [1])
    assert halves([0, 1, 2, 3], [1, 5, 2, 4]) == ([1, 0], [3, 2])


def closest(low: list[int], high: list[int], costs: list[Any]) -> Any:
    """Return how close one move or swap can bring two parts, by trying all."""
    gap = sum(costs[index] for index in high) - sum(costs[index] for index in low)
    changes = [costs[given] for given in high] + [costs[one] - costs[two] for one in high for two in low]
    return min([gap, *[abs(gap - 2 * change) for change in changes]])


def test_an_exchange_is_the_best_there_is() -> None:
    draw = drawing("exchange")
    changed = 0
    for _ in range(2000):
        most = draw.choice([3, 10, 1000, 10**30])
        costs = [draw.randint(0, most) for _ in range(draw.randint(3, 14))]
        cut = draw.randint(1, len(costs) - 2)
        places = draw.sample(range(len(costs)), len(costs))
        low, high = sorted((places[:cut], places[cut:]), key=lambda part: totals([part], costs))
        if len(high) == 1:
            continue
        found = exchange(low, high, costs)
        assert sorted(itertools.chain(*found)) == sorted(places)
        assert all(found)
        one, two = totals([*found], costs)
        assert abs(one - two) == closest(low, high, costs), (low, high, costs)
        changed += found != (low, high)
    assert changed > 500


def test_what_cannot_bring_two_parts_closer_is_known_before() -> None:
    draw = drawing("closer")
    helped = 0
    for _ in range(2000):
        costs = [draw.randint(0, draw.choice([2, 10, 1000, 10**30])) for _ in range(draw.randint(3, 14))]
        cut = draw.randint(1, len(costs) - 2)
        low, high = sorted(
            (list(range(cut)), list(range(cut, len(costs)))), key=lambda part: totals([part], costs)
        )
        gap = totals([high], costs)[0] - totals([low], costs)[0]
        if len(high) == 1 or gap == 0:
            continue
        ways = [totals([*way], costs) for way in (exchange(low, high, costs), halves(low + high, costs))]
        helps = any(abs(one - two) < gap for one, two in ways)
        rising: list[Any] = [sorted(costs[index] for index in part) for part in (low, high)]
        assert closer(rising[0], rising[1], gap) is helps, (low, high, costs)
        helped += helps
    assert 500 < helped < 1900


def test_levelling_only_ever_brings_closer() -> None:
    draw = drawing("level")
    closer = 0
    for _ in range(1500):
        lengths, cap = drawn_lengths(draw, 40)
        costs = drawn_costs(draw, lengths) or lengths
        fitted = naive_first_fit(lengths, cap)
        parts = split_largest(fitted, draw.randint(len(fitted), len(lengths)), costs)
        before = totals(parts, costs)
        level(parts, lengths, cap, costs)
        after = totals(parts, costs)
        assert sorted(itertools.chain(*parts)) == list(range(len(lengths)))
        assert all(parts)
        assert holds(parts, lengths, cap), (lengths, cap)
        assert max(after) <= max(before)
        assert min(after) >= min(before)
        closer += max(after) - min(after) < max(before) - min(before)
    assert closer > 500


def test_levelling_goes_on_past_the_pairs_that_cannot_help() -> None:
    # The 10 can give nothing, so the cheapest part has to turn to the next.
    parts = [[0], [1, 2, 3], [4]]
    level(parts, [10, 3, 3, 3, 1], 10, [10, 3, 3, 3, 1])
    assert sorted(totals(parts, [10, 3, 3, 3, 1])) == [4, 6, 10]


def test_levelling_lowers_the_costliest_part_that_the_cheapest_cannot_help() -> None:
    # The cheapest part is full, so the costliest has to turn to the next.
    lengths, costs = [10, 5, 5, 5], [1, 6, 6, 4]
    parts = [[0], [1, 2], [3]]
    level(parts, lengths, 10, costs)
    assert sorted(totals(parts, costs)) == [1, 6, 10]


def test_levelling_divides_anew_what_no_exchange_brings_closer() -> None:
    costs = [30, 43, 21, 16, 10, 28]
    parts = [[0, 1], [2, 3, 4, 5]]
    assert exchange(parts[0], parts[1], costs) == (parts[0], parts[1])
    level(parts, costs, 80, costs)
    assert totals(parts, costs) == [74, 74]
