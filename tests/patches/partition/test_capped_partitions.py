"""The contract of partitions under a cap, on drawn and on adversarial lengths."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from partition_cases import drawing, drawn_costs, drawn_lengths, grown, naive_first_fit, totals

from overlay.patches._partition import capped, capped_partitions, fewest_parts, holds, karmarkar_karp
from overlay.patches._partition.aligned import aligned
from overlay.patches._partition.balance import split_largest
from overlay.patches._partition.level import level
from overlay.patches._partition.packing import first_fit, first_fit_decreasing, least_parts, worst_fit


def over(parts: list[list[int]], lengths: list[int], cap: int) -> list[list[int]]:
    return [part for part in parts if len(part) > 1 and sum(lengths[index] for index in part) > cap]


def check(lengths: list[int], parts: int, cap: int, costs: list[Any] | None = None) -> list[list[int]]:
    """Divide, hold the result to its contract, and return it."""
    about = (lengths, parts, cap, costs)
    found = capped_partitions(lengths, parts, cap, costs=costs)
    assert len(found) == parts, about
    assert all(found), about
    assert sorted(itertools.chain(*found)) == list(range(len(lengths))), about
    assert all(part == sorted(part) for part in found), about
    assert over(found, lengths, cap) == [], about
    assert found == capped_partitions(list(lengths), parts, cap, costs=costs), about
    costs = lengths if costs is None else costs
    balanced = [sorted(part) for part in karmarkar_karp(costs, parts, equal_size=False)]
    if not over(balanced, lengths, cap):
        assert found == balanced, about
        return found
    by_rank = sorted(
        found, key=lambda part: (sum(costs[index] for index in part), len(part), part[0]), reverse=True
    )
    assert found == by_rank, about
    theirs, ours = totals(balanced, lengths), totals(found, lengths)
    assert max(ours) <= max(theirs), about
    fitted = naive_first_fit(lengths, cap)
    if len(fitted) <= parts:
        # The seed's parts are those of first fit, the rest of them empty.
        seed = [*totals(fitted, costs), *[0] * (parts - len(fitted))]
        split = totals(grown(fitted, parts, costs), costs)
        ours = totals(found, costs)
        assert max(ours) - min(ours) <= min(max(seed) - min(seed), max(split) - min(split)), about
        assert max(ours) <= max(split), about
    return found


@pytest.mark.parametrize(("most", "cases"), [(10, 4000), (40, 1500), (200, 100)])
def test_contract_on_drawn_lengths(most: int, cases: int) -> None:
    draw = drawing(f"capped/{most}")
    repaired = 0
    for _ in range(cases):
        lengths, cap = drawn_lengths(draw, most)
        costs = drawn_costs(draw, lengths)
        needed = len(first_fit(lengths, cap))
        fewest = fewest_parts(lengths, cap, costs=costs)
        parts = draw.choice([fewest, needed, draw.randint(fewest, len(lengths))])
        check(lengths, parts, cap, costs)
        plain = karmarkar_karp(lengths if costs is None else costs, parts, equal_size=False)
        repaired += bool(over(plain, lengths, cap))
    # Otherwise this would test Karmarkar-Karp.
    assert repaired > cases / 50


#: Where an off-by-one shows: ties, zeros, what fills the cap to the last token, and what is over it alone.
EDGES = [
    ([7] * 8, 8),
    ([30720] * 16, 32768),
    ([0], 1),
    ([9], 8),
    ([0, 0, 0, 0], 1),
    ([9, 0, 0, 0], 8),
    ([8] * 5, 8),
    ([9] * 5, 8),
    ([1, 2, 3, 1, 1, 1, 7], 8),
]


@pytest.mark.parametrize(("most", "cases"), [(9, 800), (30, 150)])
def test_the_fewest_parts_and_every_number_above_are_found(most: int, cases: int) -> None:
    draw = drawing(f"fewest/{most}")
    for lengths, cap in [*EDGES, *(drawn_lengths(draw, most) for _ in range(cases))]:
        costs = drawn_costs(draw, lengths)
        fewest = fewest_parts(lengths, cap, costs=costs)
        assert max(1, least_parts(lengths, cap)) <= fewest <= len(first_fit(lengths, cap))
        assert fewest <= len(naive_first_fit(sorted(lengths, reverse=True), cap))
        for parts in range(fewest, len(lengths) + 1):
            check(lengths, parts, cap, costs)
        for parts in range(1, fewest):
            plain = karmarkar_karp(lengths if costs is None else costs, parts, equal_size=False)
            assert over(plain, lengths, cap), (lengths, cap, costs, parts)
            with pytest.raises(ValueError, match=rf"take {fewest} parts, or a higher limit"):
                capped_partitions(lengths, parts, cap, costs=costs)
        for least in (0, 1, fewest, fewest + 1, len(lengths) + 3):
            assert fewest_parts(lengths, cap, at_least=least, costs=costs) == max(fewest, least)


@pytest.mark.parametrize("lengths", [[2, 2, 3, 4, 5, 4], [2, 5, 2, 3, 4, 4], [3, 2, 2, 5, 6, 2]])
def test_karmarkar_karp_holds_the_cap_where_packing_does_not(lengths: list[int]) -> None:
    assert fewest_parts(lengths, 10) == 2
    assert totals(check(lengths, 2, 10), lengths) == [10, 10]
    check(lengths, 3, 10)


def test_a_number_above_one_that_karmarkar_karp_holds_is_found_where_packing_needs_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No drawn lengths ever got here, so what packs is made to need a part for each sample."""
    for pack in ("first_fit", "best_fit_decreasing", "first_fit_decreasing"):
        monkeypatch.setattr(capped, pack, lambda lengths, cap: [[index] for index in range(len(lengths))])
    lengths, costs = [5, 2, 7, 4], [8, 9, 4, 6]
    assert not holds(karmarkar_karp(costs, 3, equal_size=False), lengths, 10)
    assert [fewest_parts(lengths, 10, at_least=least, costs=costs) for least in (1, 2, 3, 4)] == [2, 2, 3, 4]
    found = capped_partitions(lengths, 3, 10, costs=costs)
    assert holds(found, lengths, 10)
    assert sorted(itertools.chain(*found)) == [0, 1, 2, 3]
    assert all(found)


@pytest.mark.nightly("the same properties, of more samples", count=(65_536,))
@pytest.mark.parametrize("count", [2048, 65_536])
def test_properties_at_the_sizes_of_a_step(count: int) -> None:
    """Nothing here is compared with what is slow: each property by itself."""
    draw = drawing(f"sizes/{count}")
    for turn in range(4):
        cap = draw.choice([8192, 16384, 131072])
        lengths = [max(1, min(cap, int(draw.lognormvariate(7.5, 1)))) for _ in range(count)]
        if turn % 2:  # ties, and what is over the cap
            lengths = [length // 512 * 512 for length in lengths]
            lengths[draw.randrange(count)] = 2 * cap
        costs = [24576 * length + length**2 for length in lengths] if turn > 1 else None
        fewest = fewest_parts(lengths, cap, costs=costs)
        needed = min(len(first_fit(lengths, cap)), len(first_fit_decreasing(lengths, cap)))
        assert least_parts(lengths, cap) <= fewest <= needed
        for parts in (fewest, fewest + draw.randint(1, count - fewest) // 4):
            found = capped_partitions(lengths, parts, cap, costs=costs)
            assert len(found) == parts
            assert all(found)
            assert sorted(itertools.chain(*found)) == list(range(count))
            assert holds(found, lengths, cap)
            # Another rank, whose list is another object.
            assert capped_partitions(tuple(lengths), parts, cap, costs=costs) == found


def test_flops_are_closer_together_than_first_fit_alone_leaves_them() -> None:
    draw = drawing("flops")
    for _ in range(3):
        lengths = [max(1, min(16384, int(draw.lognormvariate(7.5, 1)))) for _ in range(1024)]
        costs = [24576 * length + length**2 for length in lengths]
        needed = len(first_fit(lengths, 16384))
        first = split_largest(naive_first_fit(lengths, 16384), needed, costs)
        level(first, lengths, 16384, costs)
        worst = worst_fit(lengths, needed, 16384, costs)
        starts = [first]
        if worst is not None:  # with so few parts it may find no room for the last ones
            level(worst, lengths, 16384, costs)
            starts.append(worst)
        best = min(max(sums) - min(sums) for sums in (totals(start, costs) for start in starts))
        sums = totals(check(lengths, needed, 16384, costs), costs)
        assert max(sums) - min(sums) == best


def test_costs_are_balanced_where_the_cap_allows() -> None:
    """One long sample costs what many short ones do, so the parts differ in tokens and not in cost."""
    lengths, costs = [8, 4, 4, 4, 4], [64, 16, 16, 16, 16]
    assert capped_partitions(lengths, 2, 16, costs=costs) == [[1, 2, 3, 4], [0]]
    assert totals(capped_partitions(lengths, 2, 12, costs=costs), costs) == [80, 48]


@pytest.mark.parametrize(
    ("lengths", "parts", "cap", "costs", "text"),
    [
        ([1, 2], 3, 8, None, "2 samples cannot fill 3 parts"),
        ([1, 2], 0, 8, None, "2 samples cannot fill 0 parts"),
        ([], 1, 8, None, "0 samples cannot fill 1 parts"),
        ([1, 2], 1, 0, None, "a limit of 0 tokens holds nothing"),
        ([1, -2], 1, 8, None, "a sample of -2 tokens"),
        ([1, 2], 1, 8, [1], "1 costs for 2 samples"),
        ([5, 5, 5], 2, 8, None, "3 samples of 15 tokens into 2 parts of at most 8 tokens: take 3 parts"),
    ],
)
def test_what_cannot_be_is_refused(
    lengths: list[int], parts: int, cap: int, costs: list[int] | None, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        capped_partitions(lengths, parts, cap, costs=costs)


def test_the_contract_told() -> None:
    assert holds([[0, 1], [2]], [3, 5, 9], 8)
    assert not holds([[0, 1], [2]], [4, 5, 9], 8)
    assert not holds([[0], [1, 2]], [3, 9, 0], 8)
    assert holds([[]], [], 1)


def test_no_samples_need_a_part_all_the_same() -> None:
    assert fewest_parts([], 8) == 1
    assert fewest_parts([], 8, at_least=4) == 4
    assert len(first_fit([], 8)) == 0


# -- micro-batches whose number is rounded up: under the cap, unless that would stop a job that runs -------


def cut_in_two(parts: list[list[int]], target: int, lengths: Sequence[int]) -> None:
    """Do as slime and miles do: cut parts of several samples in two until there are enough."""
    while len(parts) < target:
        fullest = max(
            (part for part in parts if len(part) > 1), key=lambda part: sum(lengths[i] for i in part)
        )
        parts.append([fullest.pop()])


def test_too_few_samples_to_round_up_leave_the_upstream_its_parts(capsys: pytest.CaptureFixture[str]) -> None:
    # None of two samples holds the cap, and eight micro-batches of seven samples are none.
    packed = [[0, 1], [2, 3], [4, 5], [6]]
    effect = SimpleNamespace(calls=0)
    found = aligned(packed, [10] * 7, 15, lambda: [10] * 7, 4, cut_in_two, effect)
    assert found == packed
    assert vars(effect) == {"calls": 1}
    assert "7 samples, too few for 8 micro-batches" in capsys.readouterr().err
