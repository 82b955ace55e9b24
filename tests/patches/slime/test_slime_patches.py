"""What slime's patches decide beside what their contracts ask of slime itself."""

from __future__ import annotations

import itertools
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from overlay import log
from overlay.patches._partition import holds, karmarkar_karp
from overlay.patches._partition.packing import first_fit
from overlay.patches._rebound import rebound
from overlay.patches._slime_step import current
from overlay.patches._whitening import over_all, whitened
from overlay.patches.slime import capped_partitions, vpp_ceiling, whiten_over_cp
from overlay.patches.slime.capped_partitions import make_pack, make_split
from overlay.patches.slime.vpp_ceiling import rounded, rounded_up

#: What the factories do not look at.
NO_MODULE: Any = None
#: Samples that first fit puts into 5 parts of 100, and that fit into 4.
TIGHT = [20, 35, 40, 35, 50, 50, 35, 20, 55, 40]
#: The same of 7 samples, which are too few for 8 parts.
FEW = [25, 25, 55, 55, 40, 55, 65]


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


def test_the_budget_is_of_one_step_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls from elsewhere get the original, and after an error the budget is forgotten."""
    split = make_split(lambda *given, **_: ("slime's", given), NO_MODULE)
    assert split([7] * 8, 5, False) == ("slime's", ([7] * 8, 5, False))
    assert vpp_ceiling.count(lambda lengths, _most: len(lengths), NO_MODULE)([60] * 3, 100) == 3

    def get_data_iterator(args: Any, _model: Any, data: Any) -> Any:
        assert current.get() == (100, 1)
        raise KeyError(data)

    mpu = SimpleNamespace(
        get_context_parallel_world_size=lambda: 2, get_virtual_pipeline_model_parallel_world_size=lambda: None
    )
    # Importing Megatron takes seconds, and warns.
    utils: Any = SimpleNamespace(get_model_config=lambda model: model.config)
    monkeypatch.setitem(sys.modules, "megatron.core.utils", utils)
    iterate = capped_partitions.make_iterator(get_data_iterator, SimpleNamespace(mpu=mpu))
    args = SimpleNamespace(use_dynamic_batch_size=True, max_tokens_per_gpu=50)
    with pytest.raises(KeyError):
        iterate(args, [], {})
    assert current.get() is None


def test_a_split_over_the_budget_is_another_and_one_within_is_slimes_own() -> None:
    within, over = [[0, 2], [1, 3]], [[0, 1], [2, 3]]
    token = current.set((100, 1))
    try:
        for theirs in (within, over):
            found = make_split(lambda *_, theirs=theirs: theirs, NO_MODULE)([60, 60, 20, 30], 2, False)
            assert (found is theirs) is (theirs is within)
            assert holds(found, [60, 60, 20, 30], 100)
            assert sorted(itertools.chain(*found)) == [0, 1, 2, 3]
    finally:
        current.reset(token)


def test_no_rank_stops_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = [[0, 1], [2, 3]]
    said: list[str] = []
    monkeypatch.setattr(log, "warning", said.append)
    split = make_split(lambda *_: theirs, NO_MODULE)
    token = current.set((100, 2))
    try:
        assert split([60, 60, 60, 60], 2, False) is theirs
        # All ranks have this number, and as many samples.
        with pytest.raises(ValueError, match=r"a step of 1 samples .* multiple of 2 .*\. Raise global_batch"):
            split([60], 2, False)
    finally:
        current.reset(token)
    assert ["slime.vpp-ceiling is not applied" in line for line in said] == [True]


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


@pytest.mark.parametrize(("virtual", "group", "count"), [(1, 4, 5), (2, 2, 6), (2, 4, 8)])
def test_groups_of_virtual_stages_count_where_there_are_any(virtual: int, group: int, count: int) -> None:
    """As slime 0.3.1 packs a step, by the square of the length."""
    lengths = [60] * 5 + [1] * 5
    squares = [length**2 for length in lengths]

    def cut(bins: list[list[int]], wanted: int, _lengths: list[int]) -> None:
        while len(bins) < wanted:
            bins.append([max((part for part in bins if len(part) > 1), key=len).pop()])

    module: Any = SimpleNamespace(_calculate_workloads=lambda *_: squares, expand_bins_by_splitting=cut)
    pack = make_pack(lambda *_, **__: karmarkar_karp(squares, 4, equal_size=False), module)

    def build(_args: Any, _sizes: Any, totals: list[int], **_given: Any) -> Any:
        flags = {"use_dynamic_batch_size": True, "balance_by_flops": True, "max_per_bin": 100}
        return pack(totals, args=None, micro_batch_size=1, **flags)

    sizes = {"dp_size": 1, "vpp_size": virtual, "microbatch_group_size_per_vp_stage": group}
    found: Any = capped_partitions.schedule(build, module)(
        None, sizes, lengths, global_batch_size=1, rollout_indices=[]
    )
    assert len(found) == count
    assert sorted(itertools.chain(*found)) == list(range(10))
    assert holds(found, lengths, 100)


# -- whitening on one rank, at its degenerate points (on four: tests/real/test_slime_ranks.py) -------------


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


def _whitens() -> None:
    """Stand for a function of an upstream, over the names of its module."""
    whitened = distributed_masked_whiten(torch.tensor([1.0, 3.0]), torch.ones(2))  # type: ignore[name-defined]  # noqa: F821
    seen.append(whitened)  # type: ignore[name-defined]  # noqa: F821


def test_each_normalisation_is_counted_as_its_sums_are_in_float64() -> None:
    whiten_over_cp.EFFECT.clear()
    seen: list[Any] = []
    module: Any = SimpleNamespace(seen=seen, torch=torch)
    run = over_all(_whitens, module, lambda _sums: None, whiten_over_cp.EFFECT)
    run(lambda function: function(), lambda: seen)
    assert seen.pop().sum() == 0
    assert whiten_over_cp.EFFECT.read() == {"changed": 1, "empty": 0}


# -- a function over the names of its module, a few of which are others ------------------------------------

SOURCE = """
factor, more = 2, 1

def scaled(value, times=3, *, plus=4):
    return value * times * factor + plus * more

def through(value):
    return scaled(value)
"""


@pytest.fixture
def module() -> Any:
    made = ModuleType("upstream")
    exec(SOURCE, made.__dict__)  # noqa: S102 -- the text above
    return made


def test_it_has_other_names_and_the_defaults_of_the_original(module: Any) -> None:
    assert rebound(module.scaled, module, factor=10)(5) == 5 * 3 * 10 + 4
    assert rebound(module.scaled, module, factor=10)(5, 1, plus=0) == 50


def test_the_module_and_its_other_functions_keep_theirs(module: Any) -> None:
    assert rebound(module.through, module, factor=10)(5) == module.scaled(5) == 34


def test_what_others_have_replaced_in_the_module_is_seen(module: Any) -> None:
    own = rebound(module.scaled, module, factor=10)
    module.more = 100  # also after the patch was put in place
    assert own(5) == 5 * 3 * 10 + 400
