"""The arithmetic of verl.strict-token-budget: one number for all ranks, or one error on all of them."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import overlay.patches.verl.strict_token_budget as fix
from overlay import log
from overlay.patches.verl.strict_token_budget import TokenBudgetError, make_rearrange, measure, settle

LENGTHS = st.lists(st.integers(min_value=0, max_value=60), min_size=0, max_size=24)
RANKS = st.lists(LENGTHS, min_size=1, max_size=4)
CAPS = st.integers(min_value=-1, max_value=80)


class Asked(Exception):  # noqa: N818 -- not an error: it carries what a rank would send
    pass


def workload(lengths: torch.Tensor) -> torch.Tensor:
    return 3 * lengths + lengths**2


def batch(lengths: list[int], width: int | None = None) -> dict[str, Any]:
    if width is not None:
        mask = torch.arange(width)[None] < torch.tensor(lengths)[:, None]
        return {"input_ids": torch.zeros(len(lengths), width), "attention_mask": mask}
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    nested = torch.nested.nested_tensor_from_jagged(torch.zeros(int(offsets[-1])), offsets)
    return {"input_ids": nested}


def on_ranks(ranks: list[list[int]], cap: int, group_size: int = 1, **arguments: int) -> list[Any]:
    """Return what each rank settles on, or the text of its error. The ranks ask each other exactly once."""
    sent: list[int] = []
    settled: list[Any] = []

    def ask(own: int) -> int:
        sent.append(own)
        raise Asked

    def run(lengths: list[int], agree: Any) -> Any:
        whole = 0 if len(lengths) % group_size else len(lengths)
        groups = [lengths[start : start + group_size] for start in range(0, whole, group_size)]
        return settle(
            len(lengths),
            max(lengths, default=0),
            [sum(group) for group in groups],
            [sum(3 * length + length**2 for length in group) for group in groups],
            cap=cap,
            agree=agree,
            group_size=group_size,
            **arguments,
        )

    for lengths in ranks:
        with pytest.raises(Asked):
            run(lengths, ask)
    greatest = max(sent)
    for lengths in ranks:
        asked: list[Any] = []

        def answer(own: int, asked: list[Any] = asked) -> int:
            asked.append(own)
            return greatest

        try:
            settled.append(run(lengths, answer))
        except TokenBudgetError as error:
            settled.append(str(error))
        assert len(asked) == 1
    return settled


@settings(max_examples=500, deadline=None)
@given(RANKS, CAPS, st.integers(1, 3), st.integers(1, 4), st.integers(-1, 9))
@example([[7] * 8], 8, 1, 1, 1)
@example([[7] * 8, [1]], 8, 1, 1, 1)
@example([[5], [5]], 5, 1, 1, 1)
@example([[], [3, 3]], 3, 1, 1, 1)
@example([[0, 0, 0]], 0, 1, 1, 1)
@example([[0, 0, 0]], 1, 1, 2, 1)
@example([[3, 3, 3]], 6, 2, 1, 1)
@example([[3, 3, 1, 1], [1, 1, 1, 1]], 4, 2, 1, 1)
def test_all_ranks_take_one_number_or_fail_with_one_error(
    ranks: list[list[int]], cap: int, group_size: int, divisor: int, at_least: int
) -> None:
    settled = on_ranks(ranks, cap, group_size, divisor=divisor, at_least=at_least)
    failed = [rank for rank in settled if isinstance(rank, str)]
    if failed:
        # As many samples on each rank is what verl gives them. Who has fewer than all need says so alone.
        alone = [rank for rank in failed if "this rank has only" in rank]
        equal = len({len(lengths) for lengths in ranks}) == 1
        assert len(set(failed)) == 1 or alone == failed
        assert len(failed) == len(settled) or (alone and not equal)
        # Each sample in its own micro-batch would have done, but for what the error says.
        groups = [len(lengths) // group_size for lengths in ranks]
        assert (
            max((max(lengths, default=0) for lengths in ranks), default=0) > cap
            or cap < 1
            or any(len(lengths) % group_size for lengths in ranks)
            or divisor > 1
            or min(groups) < max(at_least, 1)
            or min(groups) < max(groups)
        )
        return
    count = len(settled[0])
    assert count % divisor == 0
    assert count >= at_least
    for lengths, partitions in zip(ranks, settled, strict=True):
        assert len(partitions) == count
        assert sorted(index for part in partitions for index in part) == list(
            range(len(lengths) // group_size)
        )
        assert all(partitions)
        tokens = [sum(lengths[i * group_size : (i + 1) * group_size]) for i in range(len(lengths))]
        assert all(len(part) == 1 or sum(tokens[index] for index in part) <= cap for part in partitions)


@pytest.mark.parametrize(
    ("ranks", "arguments", "count"),
    [
        ([[7] * 8], {"cap": 8}, 8),
        ([[30720] * 16], {"cap": 32768}, 16),
        ([[4, 4, 4, 4]], {"cap": 8}, 2),
        # The neediest rank decides, then the divisor.
        ([[4, 4, 4, 4], [7, 7, 7]], {"cap": 8}, 3),
        ([[4, 4, 4, 4], [7, 7, 7, 1]], {"cap": 8, "divisor": 2}, 4),
        ([[4, 4, 4, 4]], {"cap": 100, "at_least": 3}, 3),
        ([[4, 4, 4, 4]], {"cap": 100, "at_least": 3, "divisor": 2}, 4),
        ([[2, 2, 3, 3]], {"cap": 6, "group_size": 2}, 2),
        # What must stay together is alone if it is over the limit, and takes none of the others' room.
        ([[2, 2, 5, 5, 2, 2]], {"cap": 8, "group_size": 2}, 3),
        # There are no fewer than the tokens ask for, as in verl, though such a group takes one only.
        ([[1, 1, 20, 20, 1, 1, 1, 1]], {"cap": 20, "group_size": 2}, 3),
        ([[0, 0]], {"cap": 8}, 1),
        # Only what balances the workload finds this one: balanced tokens, first fit and best fit need 4.
        ([[5, 4, 20, 5, 4, 12, 10]], {"cap": 20}, 3),
    ],
)
def test_the_number_of_micro_batches(ranks: list[list[int]], arguments: dict[str, int], count: int) -> None:
    assert [len(partitions) for partitions in on_ranks(ranks, **arguments)] == [count] * len(ranks)


@pytest.mark.parametrize(
    ("ranks", "arguments", "words"),
    [
        ([[3], [9, 1]], {"cap": 8}, ["sample of 9 tokens", "max_token_len=8", "max_token_len_per_gpu"]),
        ([[3]], {"cap": 0}, ["sample of 3 tokens", "max_token_len=0"]),
        ([[3, 3], [3, 3, 3]], {"cap": 8, "group_size": 2}, ["3 samples", "force_group_size=2"]),
        ([[7] * 3, [8] * 3], {"cap": 8, "divisor": 4}, ["4 micro-batches", "only 3 groups of 1", "=8"]),
        ([[7] * 3], {"cap": 8, "divisor": 2}, ["4 micro-batches", "num_batches_divided_by=2", "only 3"]),
        ([[1] * 3], {"cap": 8, "at_least": 5}, ["5 micro-batches", "min_num_micro_batch=5", "only 3"]),
        ([[], []], {"cap": 8}, ["1 micro-batches", "only 0"]),
    ],
)
def test_the_error_has_the_numbers_and_the_way_out(
    ranks: list[list[int]], arguments: dict[str, int], words: list[str]
) -> None:
    for message in on_ranks(ranks, **arguments):
        assert isinstance(message, str), message
        assert not [word for word in words if word not in message], message


def test_a_rank_without_overlay_raises_on_what_another_cannot_do() -> None:
    asked: list[int] = []

    def agree(own: int) -> int:
        asked.append(own)
        return own

    for arguments in ((1, 9, [9], [9]), (10**6, 3, [], [])):
        with pytest.raises(TokenBudgetError):
            settle(*arguments, cap=8, agree=agree, group_size=3)
    # verl's own check is that there are no more micro-batches than samples.
    assert min(asked) > 10**9


def test_a_group_over_the_limit_is_alone_and_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(log, "warning", said.append)
    tokens = [1, 9, 1, 10]

    def settled() -> list[list[int]]:
        return sorted(map(sorted, settle(8, 5, tokens, tokens, cap=8, agree=int, group_size=2)))

    assert settled() == settled() == [[0, 2], [1], [3]]
    first, second = said
    assert first == second  # which the log says once
    for words in ("2 samples", "max_token_len=8", "max_token_len_per_gpu"):
        assert words in first


def test_a_batch_is_measured_nested_padded_and_where_groups_do_not_divide_it() -> None:
    assert measure(batch([3, 0, 5, 1]), workload) == (4, 5, [3, 0, 5, 1], [18, 0, 40, 4])
    assert measure(batch([3, 0, 5, 1]), workload, 2) == (4, 5, [3, 6], [18, 44])
    assert measure(batch([3, 0, 5, 1], 7), workload, 4) == (4, 7, [9], [62])
    assert measure(batch([3, 0, 5]), workload, 2) == (3, 5, [], [])


def test_workload_is_counted_in_64_bits() -> None:
    offsets = torch.tensor([0, 60_000], dtype=torch.int32)
    nested = torch.nested.nested_tensor_from_jagged(torch.zeros(60_000), offsets)
    measured = measure({"input_ids": nested}, lambda lengths: 24576 * lengths + lengths**2)
    assert measured[3] == [24576 * 60_000 + 60_000**2]


class Dist(SimpleNamespace):
    """Stands in for torch.distributed with two ranks, of which the other needs `other` micro-batches."""

    ReduceOp = SimpleNamespace(MAX="max")

    def is_initialized(self) -> bool:
        return bool(self.initialized)

    def all_reduce(self, tensor: torch.Tensor, op: str, group: Any) -> None:
        assert op == "max"
        self.calls.append(group)
        tensor[0] = max(int(tensor[0]), self.other)


def fake(*, initialized: bool = True, other: int = 1) -> Any:
    dist = Dist(initialized=initialized, other=other, calls=[])
    return SimpleNamespace(dist=dist, calculate_workload=workload, get_device_name=lambda: "cpu")


def with_parameters(original: Any, *, groups: bool = True) -> Any:
    """Return a function with the parameters of verl's `rearrange_micro_batches`: groups are of 0.7.1."""
    optional = ("dp_group", "num_batches_divided_by", "same_micro_num_in_dp", "min_num_micro_batch")
    usual: dict[str, Any] = {**dict.fromkeys(optional), "same_micro_num_in_dp": True}
    usual |= {"force_group_size": 1} if groups else {}
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    made = [inspect.Parameter(name, kind) for name in ("batch", "max_token_len")]
    made += [inspect.Parameter(name, kind, default=value) for name, value in usual.items()]
    original.__signature__ = inspect.Signature(made)
    return original


def rearranged(module: Any, *, groups: bool, **arguments: Any) -> tuple[list[list[int]], dict[str, Any]]:
    """Return the partitions that an original gets, and the arguments that it is called with."""
    partitions = fix.partitions(lambda *_args, **_named: "the original's", module)
    seen: dict[str, Any] = {}

    def original(**given: Any) -> Any:
        seen.update(given)
        return partitions([1, 2], 1, equal_size=False)

    made = make_rearrange(with_parameters(original, groups=groups), module)
    found = made(batch([4, 4, 4, 4]), 8, **arguments)
    assert partitions([1, 2], 1, equal_size=False) == "the original's"
    return found, seen


@pytest.mark.parametrize(
    ("groups", "initialized", "arguments", "asked"),
    [
        (True, True, {"dp_group": "group"}, ["group"]),
        (True, True, {}, []),
        (True, True, {"dp_group": "group", "same_micro_num_in_dp": False}, []),
        (True, False, {"dp_group": "group"}, []),
        (False, True, {"dp_group": "group"}, ["group"]),
        (False, True, {}, [None]),
        (False, True, {"same_micro_num_in_dp": False}, []),
        (False, False, {}, []),
    ],
)
def test_ranks_are_asked_once_where_upstream_asks_them(
    groups: bool, initialized: bool, arguments: dict[str, Any], asked: list[Any]
) -> None:
    module = fake(initialized=initialized, other=3)
    found, seen = rearranged(module, groups=groups, **arguments)
    assert module.dist.calls == asked
    assert len(found) == (3 if asked else 2)
    # The original has nothing left to ask.
    assert seen["same_micro_num_in_dp"] is False
    assert seen["min_num_micro_batch"] == len(found)


def test_what_was_settled_is_forgotten_when_the_original_raises() -> None:
    module = fake(initialized=False)
    partitions = fix.partitions(lambda *_args, **_named: "the original's", module)

    def original(**_given: Any) -> Any:
        raise KeyError("position_ids")

    with pytest.raises(KeyError):
        make_rearrange(with_parameters(original), module)(batch([4]), 8)
    assert partitions([1], 1, equal_size=False) == "the original's"
