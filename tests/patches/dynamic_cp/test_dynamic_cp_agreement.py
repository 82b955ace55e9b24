"""Ranks ask each other how they split micro-batches: here one of them, with the answers of another."""

from __future__ import annotations

from typing import Any

import pytest

from overlay.errors import SelectionError
from overlay.patches._dynamic_cp.agreement import agree

dist = pytest.importorskip("torch.distributed")


class Group:
    """What stands for a process group."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return what this rank has told the other, which says "uniform" each time."""
    told: list[Any] = []

    def gather(ways: list[Any], own: Any, group: Any) -> None:
        told.append(own)
        ways[:] = [own, "uniform"]

    monkeypatch.setattr(dist, "get_world_size", lambda group: 2)
    monkeypatch.setattr(dist, "all_gather_object", gather)
    return told


def test_a_group_is_asked_once_and_another_again(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERLAY_DCP", "uniform")
    group, other = Group(), Group()
    for one in (group, group, other):
        agree(one)
    assert asked == ["uniform", "uniform"]


def test_a_difference_is_an_error_as_often_as_it_is_there(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OVERLAY_DCP", "mixed")
    group = Group()
    for _ in range(2):
        with pytest.raises(ValueError, match="mixed, uniform"):
            agree(group)
    assert asked == ["mixed", "mixed"]


def test_a_rank_that_cannot_read_its_setting_answers_before_it_raises(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OVERLAY_DCP", "sideways")
    with pytest.raises(SelectionError, match="sideways"):
        agree(Group())
    (said,) = asked
    assert "sideways" in said
