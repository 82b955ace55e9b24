"""slime's patches of micro-batches on a small module with the same seams; `tests/real` has slime itself."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from fake_slime import FakeSlime
from hypothesis import example, given
from hypothesis import strategies as st

from overlay import log
from overlay.patches._partition import holds
from overlay.patches._partition.packing import first_fit
from overlay.patches._slime_step import current
from overlay.patches.slime import capped_partitions, vpp_ceiling
from overlay.patches.slime.capped_partitions import make_iterator, make_pack, make_split
from overlay.patches.slime.fast_partitioner import make_karmarkar_karp
from overlay.patches.slime.vpp_ceiling import rounded, rounded_up

CAPPED = {"get_data_iterator": make_iterator, "get_seqlen_balanced_partitions": make_split}
BOTH = {**CAPPED, "get_minimum_num_micro_batch_size": vpp_ceiling.count}

#: What the factories do not look at.
NO_MODULE: Any = None
#: Samples that first fit puts into 5 parts of 100, and that fit into 4.
TIGHT = [20, 35, 40, 35, 50, 50, 35, 20, 55, 40]
#: The same of 7 samples, which are too few for 8 parts.
FEW = [25, 25, 55, 55, 40, 55, 65]


@pytest.fixture(autouse=True, scope="module")
def megatron() -> Iterator[None]:
    """Stand in for the one function of Megatron that is asked for: importing it takes seconds and warns."""
    with pytest.MonkeyPatch.context() as patch:
        utils: Any = SimpleNamespace(get_model_config=lambda model: model.config)
        patch.setitem(sys.modules, "megatron.core.utils", utils)
        yield


@st.composite
def rollouts(draw: st.DrawFn) -> tuple[list[list[int]], int]:
    budget = draw(st.integers(1, 40))
    samples = draw(st.integers(1, 16))
    length = st.integers(0, budget) | st.integers(0, 2 * budget) | st.just(budget // 2 + 1)
    ranks = draw(st.lists(st.lists(length, min_size=samples, max_size=samples), min_size=1, max_size=4))
    return ranks, budget


def assert_held(ranks: list[list[int]], found: list[Any], limit: int, group: int = 1) -> None:
    numbers = {len(parts) for parts in found}
    assert len(numbers) == 1
    assert numbers.pop() % group == 0
    for lengths, parts in zip(ranks, found, strict=True):
        assert sorted(index for part in parts for index in part) == list(range(len(lengths)))
        assert all(parts)
        assert holds(parts, lengths, limit)


@given(rollouts(), st.integers(1, 3))
@example(([[7] * 8], 8), 1)
@example(([[5, 1, 1]], 4), 1)
@example(([TIGHT, [1] * 10], 100), 1)
@example(([TIGHT, [150] * 4 + [1] * 6], 100), 2)
def test_no_micro_batch_exceeds_the_budget(drawn: tuple[list[list[int]], int], context: int) -> None:
    ranks, budget = drawn
    plain = FakeSlime(ranks, context=context).run(budget)
    ours = FakeSlime(ranks, context=context).put_in(**CAPPED).run(budget)
    assert_held(ranks, ours, budget * context)
    for lengths, mine, before in zip(ranks, ours, plain, strict=True):
        if holds(before, lengths, budget * context):
            assert mine == before


@given(rollouts(), st.integers(1, 4), st.booleans())
@example(([TIGHT, [1] * 10], 100), 4, False)
@example(([TIGHT[:5]], 100), 2, True)
@example(([[100] * 5], 100), 2, True)
def test_the_number_is_a_multiple_or_every_rank_says_why(
    drawn: tuple[list[list[int]], int], group: int, up: bool
) -> None:
    ranks, budget = drawn
    count = vpp_ceiling.count_286 if up else vpp_ceiling.count
    makers = {**CAPPED, "get_minimum_num_micro_batch_size": count}
    plain = FakeSlime(ranks, stages=2, group=group, up=up).run(budget)
    found = FakeSlime(ranks, stages=2, group=group, up=up).put_in(**makers).run(budget)
    samples = len(ranks[0])
    needed = max(len(first_fit(lengths, budget)) for lengths in ranks)
    if any(isinstance(each, Exception) for each in found):
        assert samples < group or (up and -(-needed // group) * group > samples)
        assert len({str(each) for each in found}) == 1
        for said in (
            f"{samples} samples",
            f"multiple of {group}",
            "Raise global_batch_size",
        ):
            assert said in str(found[0])
        return
    if -(-needed // group) * group > samples:
        # The budget cannot be held: the number is slime's own, and each sample is in one micro-batch.
        assert len({len(each) for each in found}) == 1
        assert len(found[0]) == needed // group * group
        assert all(sorted(itertools.chain(*each)) == list(range(samples)) for each in found)
        return
    assert_held(ranks, found, budget, group)
    right = not any(isinstance(each, Exception) for each in plain)
    if right and all(holds(each, lengths, budget) for each, lengths in zip(plain, ranks, strict=True)):
        assert len(plain[0]) % group or found == plain


def test_the_fake_does_what_slime_does() -> None:
    # Otherwise nothing here would be worth anything.
    assert [len(parts) for parts in FakeSlime([[60] * 7 + [1]], stages=2, group=4).run(100)] == [4]
    assert not holds(FakeSlime([TIGHT], stages=2, group=4).run(100)[0], TIGHT, 100)
    assert [len(parts) for parts in FakeSlime([[1, 1]], stages=2, group=4).run(100)] == [1]


def test_sizes_that_are_not_dynamic_are_left_alone() -> None:
    slime = FakeSlime([[60, 60]]).put_in(**BOTH)
    assert slime.run(100, dynamic=False) == ["static"]
    assert slime.run(None, dynamic=False) == ["static"]
    # slime's own way to say that there is no budget.
    assert isinstance(slime.run(None)[0], TypeError)


def test_calls_from_elsewhere_get_the_original() -> None:
    slime = FakeSlime([[60, 60]], stages=2, group=4)
    original = slime.get_seqlen_balanced_partitions
    slime.put_in(**BOTH)
    assert slime.get_seqlen_balanced_partitions([7] * 8, 5, equal_size=False) == original(
        [7] * 8, 5, equal_size=False
    )
    assert slime.get_minimum_num_micro_batch_size([60, 60, 60], 100) == 3


def test_the_budget_is_forgotten_after_an_error() -> None:
    slime = FakeSlime([[100]], stages=2, group=2).put_in(**BOTH)
    assert isinstance(slime.run(100)[0], ValueError)
    assert current.get() is None


@pytest.mark.parametrize(
    ("ranks", "group"),
    [([[60] * 5, [1] * 5], 2), ([[60] * 5, [20] * 5], 4), ([[70] + [60] * 5, [10] * 6], 4)],
)
def test_a_step_with_too_few_samples_to_round_up_is_slimes_own(ranks: list[list[int]], group: int) -> None:
    plain = FakeSlime(ranks, stages=2, group=group).run(100)
    assert FakeSlime(ranks, stages=2, group=group).put_in(**BOTH).run(100) == plain


def test_without_the_ceiling_no_rank_stops_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = [[60] * 7 + [1], [1] * 8]
    plain = FakeSlime(ranks, stages=2, group=4).run(100)
    said: list[str] = []
    monkeypatch.setattr(log, "warning", said.append)
    assert FakeSlime(ranks, stages=2, group=4).put_in(**CAPPED).run(100) == plain
    assert ["slime.vpp-ceiling is not applied" in line for line in said] == [True]


@pytest.mark.parametrize(
    ("lengths", "count", "group", "down", "up"),
    [
        ([60] * 8, 8, 4, 8, 8),
        ([60] * 7 + [1], 7, 4, 8, 8),
        ([60] * 3 + [1] * 5, 3, 4, 4, 4),
        (TIGHT, 5, 4, 4, 8),
        (TIGHT, 5, 7, 7, 7),
        (FEW, 5, 4, 4, 4),
        # No multiple holds the budget: slime's own number.
        ([100] * 5, 5, 2, 4, 6),
        ([1], 1, 1, 1, 1),
    ],
)
def test_rounding(lengths: list[int], count: int, group: int, down: int, up: int) -> None:
    assert (rounded(lengths, count), rounded_up(lengths, count)) == (count, count)
    token = current.set((100, group))
    try:
        assert (rounded(lengths, count), rounded_up(lengths, count)) == (down, up)
    finally:
        current.reset(token)


def test_slime_0_1_is_told_the_context_parallel_size_and_aligns_virtual_stages_only() -> None:
    count = vpp_ceiling.count(lambda lengths, most, size: len(first_fit(lengths, most * size)), NO_MODULE)
    config = vpp_ceiling.config(lambda model: model.config, NO_MODULE)
    model = SimpleNamespace(config=SimpleNamespace(microbatch_group_size_per_vp_stage=4))
    assert count([60] * 3, 50, 2) == 3
    assert config(model) is model.config
    for group, number, aligned in ((4, 4, 4), (1, 3, None)):
        token = current.set((100, group))
        try:
            assert count([60] * 3 + [1], 50, 2) == number
            assert config(model).microbatch_group_size_per_vp_stage == aligned
        finally:
            current.reset(token)


def test_the_helper_of_upstreams_cure_is_balanced_and_leaves_none_empty() -> None:
    helper = capped_partitions.capped(len, NO_MODULE)
    assert helper([5, 1, 1], 2, 4) == [[0], [1, 2]]
    assert all(helper([4, 4, 1, 1, 1, 1, 1], 4, 8))


# --- slime 0.3 ---


def schedule(
    lengths: list[int], ranks: int, budget: int, *, virtual: int = 1, group: int = 1, **options: Any
) -> list[list[int]]:
    """Pack a step as slime 0.3.1 does, with overlay: by the square of the length."""
    module: Any = SimpleNamespace(
        _calculate_workloads=lambda step, _args: [float(length**2) for length in step],
        expand_bins_by_splitting=split_in_two,
    )

    def pack(step_lengths: list[int], **given: Any) -> list[list[int]]:
        number = -(-sum(step_lengths) // budget)
        squares = [length**2 for length in step_lengths]
        fake = FakeSlime([])
        return fake.get_seqlen_balanced_partitions(squares, number, equal_size=False)  # type: ignore[no-any-return]

    packing = make_pack(pack, module)

    def build(
        _args: Any, _sizes: Any, total_lengths: list[int], *, global_batch_size: int, rollout_indices: Any
    ) -> Any:
        more = {"use_dynamic_batch_size": True, "balance_by_flops": True, "max_per_bin": budget, **options}
        return packing(total_lengths, args=None, micro_batch_size=1, **more)

    built = capped_partitions.schedule(build, module)
    sizes = {"dp_size": ranks, "vpp_size": virtual, "microbatch_group_size_per_vp_stage": group}
    return built(None, sizes, lengths, global_batch_size=1, rollout_indices=[])  # type: ignore[no-any-return]


def split_in_two(bins: list[list[int]], count: int, lengths: list[int]) -> None:
    """Cut the largest bins in two until there are enough."""
    while len(bins) < count and any(len(part) > 1 for part in bins):
        largest = max(
            (part for part in bins if len(part) > 1), key=lambda part: sum(lengths[i] for i in part)
        )
        bins.append([largest.pop() for _ in range(len(largest) // 2)])


def test_flops_are_balanced_under_the_budget_and_aligned() -> None:
    assert schedule([7] * 8, 1, 8) == [[index] for index in range(7, -1, -1)]
    found = schedule([60] * 5 + [1] * 5, 2, 100)
    assert len(found) == 6
    assert holds(found, [60] * 5 + [1] * 5, 100)


@pytest.mark.parametrize(("virtual", "group", "count"), [(1, 4, 5), (2, 2, 6), (2, 4, 8)])
def test_groups_of_virtual_stages_count_where_there_are_any(virtual: int, group: int, count: int) -> None:
    lengths = [60] * 5 + [1] * 5
    found = schedule(lengths, 1, 100, virtual=virtual, group=group)
    assert len(found) == count
    assert holds(found, lengths, 100)


def test_what_slime_cuts_down_to_the_budget_is_left_to_it() -> None:
    # 15 parts of which one holds two samples, until they are aligned to 16.
    lengths = [30_720] * 16
    found = schedule(lengths, 2, 32_768)
    assert len(found) == 15
    assert not holds(found, lengths, 32_768)
    assert holds(schedule(lengths, 5, 32_768), lengths, 32_768) is (len(schedule(lengths, 5, 32_768)) == 16)


@pytest.mark.parametrize(
    "options", [{"balance_by_flops": False}, {"use_dynamic_batch_size": False, "max_per_bin": None}]
)
def test_other_ways_to_pack_are_left_alone(options: dict[str, Any]) -> None:
    assert len(schedule([7] * 8, 2, 8, **options)) == 7


# --- the partitioner ---


@pytest.mark.parametrize("values", [[], [-1, 2], [float("nan"), 1.0]])
def test_what_is_no_plain_number_is_the_originals(values: list[Any]) -> None:
    fast = make_karmarkar_karp(lambda *given: ("original", *given), NO_MODULE)
    assert fast(values, 2, True) == ("original", values, 2, True)
    assert fast([1, 2], 0, False) == ("original", [1, 2], 0, False)
    assert fast([5, 1, 2], 2, False) == [[0], [2, 1]]
