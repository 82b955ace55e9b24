"""What a patch counts: declared, added to, read, combined and told."""

from __future__ import annotations

import copy
import os
import pickle
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from overlay import effect as effects
from overlay.effect import Figure, combined, effect, effect_of, told

PLACE = "fake_patch.effect"


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    over = Figure(name="over", says="over the budget")
    fullest = Figure(name="fullest", says="the fullest", combine="max")
    least = Figure(name="least", says="the least", combine="min", unit="bytes")
    made = effect(PLACE, "step", over, fullest, least, then="without it {over} over, {fullest} times")
    monkeypatch.setitem(sys.modules, PLACE, ModuleType(PLACE))
    yield made
    del effects._made[PLACE]


def text(counts: Any) -> str:
    found = effect_of("fake_patch")
    assert found is not None
    return told(found)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "had nothing to do"),
        ({"calls": 1200}, "looked at 1,200 steps and changed nothing"),
        (
            {"calls": 1200, "changed": 37, "over": 61, "fullest": 2.3},
            "changed 37 of 1,200 steps; without it 61 over, 2.3 times",
        ),
        ({"calls": 1, "changed": 1}, "changed 1 of 1 step"),  # nothing was over: there is no fullest
        (
            {"calls": 2, "changed": float("nan")},
            "looked at 2 steps; how many it changed is on the device or in compiled code",
        ),
    ],
)
def test_what_was_counted_is_told(counts: Any, values: dict[str, float], said: str) -> None:
    assert counts.read() == {"calls": 0, "changed": 0, "over": 0}
    for name, value in values.items():
        setattr(counts, name, value)
    assert text(counts) == said
    counts.clear()
    assert text(counts) == "had nothing to do"


def test_a_torch_that_is_none_is_not_asked(counts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    counts.calls += 1
    assert counts.calls == 1


def test_what_is_always_changed_has_no_calls() -> None:
    made = effect("fake_always.effect", "backward pass", did="corrected", always=True)
    made.changed = 2
    found = effect_of("fake_always")
    del effects._made["fake_always.effect"]
    assert found is not None
    assert found.values == {"changed": 2}
    assert told(found) == "corrected 2 backward passes"


def test_nothing_else_can_be_added_to(counts: Any) -> None:
    with pytest.raises(AttributeError):
        counts.chagned = 1


def test_figures_of_processes_become_one(counts: Any) -> None:
    declared = counts.effect
    one = {"calls": 3, "changed": 1, "over": 2, "fullest": 1.5, "least": 7}
    other = {"calls": 4, "changed": 2, "over": 5, "fullest": 1.25, "least": 3}
    assert combined(one, other, declared) == {"calls": 7, "changed": 3, "over": 7, "fullest": 1.5, "least": 3}
    assert combined(one, {"least": 9}, declared) == one
    assert combined({}, other, declared) == other


def test_what_is_no_number_is_left_out(counts: Any) -> None:
    counts.fullest, counts.least = float("nan"), "much"
    assert counts.read() == {"calls": 0, "changed": 0, "over": 0}


def test_a_function_that_travels_counts_where_it_arrives(counts: Any) -> None:
    assert pickle.loads(pickle.dumps(counts)) is counts  # noqa: S301 -- our own
    assert copy.deepcopy([counts])[0] is counts


def test_the_child_of_a_fork_begins_at_nothing(counts: Any) -> None:
    counts.calls = 5
    pid = os.fork()
    if pid == 0:
        os._exit(counts.calls)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert counts.calls == 5


@pytest.mark.parametrize(
    ("number", "unit", "words"),
    [
        (0, "bytes", "0 bytes"),
        (1023, "bytes", "1023 bytes"),
        (1536, "bytes", "1.5 KiB"),
        (3 << 30, "bytes", "3 GiB"),
        (5 << 40, "bytes", "5.0 TiB"),
        (12345, "tokens", "12,345 tokens"),
        (0.0625, "", "0.0625"),
    ],
)
def test_numbers_read_well(number: float, unit: str, words: str) -> None:
    assert effects.as_text(number, unit) == words
