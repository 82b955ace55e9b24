"""Micro-batches whose number is rounded up: under the cap, unless that would stop a job that runs."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from overlay.patches._partition.aligned import aligned


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
