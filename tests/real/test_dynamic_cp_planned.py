"""Where `OVERLAY_DCP=mixed` makes the micro-batches of verl 0.8.0, and where they stay verl's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from overlay.patches._dynamic_cp.plan import check_plan, part_of
from overlay.patches.verl.dynamic_cp_loss import fix as dynamic_cp_loss

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.real

LENGTHS = [5, 14, 3, 7, 28, 6, 2, 7, 1]
RANKS, CAP, BUDGET = 4, 7, 9


@pytest.fixture
def prepare(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Yield the wrapped function; the original returns what it was given."""
    pytest.importorskip("verl", reason="verl is not installed")
    monkeypatch.setenv("OVERLAY_DCP", "mixed")
    token = dynamic_cp_loss._run.set((RANKS, RANKS, CAP))

    # The names are verl's: the wrapper reads what it is given by them.
    def original(
        data: Any, dp_group: Any = None, num_batches_divided_by: Any = None, min_num_micro_batch: Any = None
    ) -> Any:
        return data, dp_group, num_batches_divided_by

    yield dynamic_cp_loss.make_prepare(original, SimpleNamespace())  # type: ignore[arg-type]
    dynamic_cp_loss._run.reset(token)


def batch(**settings: Any) -> Any:
    """Return a batch whose sequences each have tokens of their own."""
    import torch
    from verl.utils import tensordict_utils as tu

    rows = [torch.full((length,), place) for place, length in enumerate(LENGTHS)]
    ids = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    known = {"use_dynamic_bsz": True, "max_token_len_per_gpu": BUDGET, "temperature": 0.5}
    told = {name: value for name, value in {**known, **settings}.items() if value is not None}
    return tu.get_tensordict({"input_ids": ids}, non_tensor_dict=told)


def test_each_sequence_is_in_one_micro_batch_whose_plan_goes_with_it(prepare: Callable[..., Any]) -> None:
    from verl.utils import tensordict_utils as tu

    parts, places = prepare(batch())
    assert sorted(place for part in places for place in part) == list(range(len(LENGTHS)))
    for part, indices in zip(parts, places, strict=True):
        rows = part["input_ids"].unbind()
        assert [row[0].item() for row in rows] == indices
        plan = tu.get_non_tensor_data(part, dynamic_cp_loss.PLANNED_KEY, default=None)
        check_plan(plan, len(indices), RANKS)
        for _, size, members in plan:
            assert sum(len(rows[member]) for member in members) <= size * BUDGET
        assert tu.get_non_tensor_data(part, "temperature", default=None) == 0.5
        assert tu.get_non_tensor_data(part, "dp_size", default=None) == RANKS


def test_a_rank_gets_its_part_of_the_plan(prepare: Callable[..., Any]) -> None:
    from verl.utils import tensordict_utils as tu

    split = dynamic_cp_loss.make_split(lambda: None, SimpleNamespace())  # type: ignore[arg-type]
    # A cap by which another plan would be an error: the one that is there is taken.
    config = SimpleNamespace(max_seqlen_per_dp_cp_rank=1)
    for part, indices in zip(*prepare(batch()), strict=True):
        plan = tu.get_non_tensor_data(part, dynamic_cp_loss.PLANNED_KEY, default=None)
        for rank in range(RANKS):
            _, size, members = part_of(plan, rank)
            mine = split(part, config, RANKS, rank)
            assert [row[0].item() for row in mine["input_ids"].unbind()] == [indices[i] for i in members]
            assert tu.get_non_tensor_data(mine, "local_cp_size", default=None) == size


@pytest.mark.parametrize(
    ("settings", "arguments"),
    [
        ({"use_dynamic_bsz": False}, {}),
        ({"force_group_size": 3}, {}),
        ({"max_token_len_per_gpu": None}, {}),
        ({}, {"num_batches_divided_by": 2}),
        ({}, {"min_num_micro_batch": 2}),
    ],
)
def test_where_it_is_prescribed_micro_batches_are_verl_s(
    prepare: Callable[..., Any], settings: dict[str, Any], arguments: dict[str, Any]
) -> None:
    data = batch(**settings)
    assert prepare(data, "group", **arguments) == (data, "group", arguments.get("num_batches_divided_by"))


def test_they_are_verl_s_without_mixed_and_without_dynamic_sizes(
    prepare: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = batch()
    monkeypatch.setenv("OVERLAY_DCP", "uniform")
    assert prepare(data)[0] is data
    monkeypatch.setenv("OVERLAY_DCP", "mixed")
    dynamic_cp_loss._run.set(None)
    assert prepare(data)[0] is data
