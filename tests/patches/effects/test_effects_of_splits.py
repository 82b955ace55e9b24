"""What patches count that split samples among micro-batches and ranks, against what is counted by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from effect_cases import NO_MODULE, counts_of, fix

pytest.importorskip("torch")
import torch

if TYPE_CHECKING:
    import random


def test_capped_partitions_of_slime(draw: random.Random) -> None:
    from overlay.patches._slime_step import current

    counts = counts_of("slime.capped-partitions")
    over, fullest, changed = 0, 0.0, 0
    for _ in range(20):
        lengths = [draw.randint(1, 60) for _ in range(12)]
        theirs = [[0, 1, 2, 3, 4, 5], [6, 7, 8], [9], [10, 11], [], []][:4]
        budget = 100
        sums = [sum(lengths[index] for index in part) for part in theirs if len(part) > 1]
        split = fix("slime.capped-partitions").make_split(lambda *_, theirs=theirs: theirs, NO_MODULE)
        token = current.set((budget, 1))
        try:
            found = split(lengths, len(theirs), False)
        finally:
            current.reset(token)
        if found is not theirs:
            changed += 1
            over += sum(one > budget for one in sums)
            fullest = max(fullest, max(sums) / budget)
    assert counts.calls == 20
    assert (counts.changed, counts.over) == (changed, over)
    if changed:
        assert counts.fullest == fullest
    split([1, 2], 1, False)  # of nobody's step
    assert counts.calls == 20


@pytest.mark.parametrize("patch", ["slime.capped-partitions", "miles.capped-partitions"])
def test_micro_batches_by_flops(patch: str) -> None:
    from overlay.patches._partition.aligned import aligned

    counts = counts_of(patch)
    lengths = [60, 70, 30, 20]

    def expand(parts: list[list[int]], count: int, _lengths: Any) -> None:
        assert len(parts) == count

    kept = [[0], [1], [2, 3]]
    assert aligned(kept, lengths, 100, lambda: lengths, 1, expand, counts) is kept
    aligned([[0, 1], [2, 3]], lengths, 100, lambda: lengths, 1, expand, counts)
    assert counts.read() == {"calls": 2, "changed": 1, "over": 1, "fullest": 1.3}


def test_vpp_ceiling() -> None:
    from overlay.patches._slime_step import current

    counts = counts_of("slime.vpp-ceiling")
    rounded = fix("slime.vpp-ceiling").rounded
    token = current.set((100, 4))
    try:
        assert rounded([90] * 7 + [1], 7) == 8  # slime takes 4
        assert rounded([90] * 8, 8) == 8
        assert rounded([90] * 7, 7) == 4  # as slime: there are too few samples for 8
        assert rounded([90] * 3, 3) == 4  # slime takes 1, as it is no less
    finally:
        current.reset(token)
    assert counts.read() == {"calls": 4, "changed": 2, "more": 4 + 3}


@pytest.mark.parametrize("patch", ["slime.fast-partitioner", "miles.fast-partitioner"])
def test_fast_partitioner(patch: str, draw: random.Random) -> None:
    counts = counts_of(patch)
    fast = fix(patch).make_karmarkar_karp(lambda *_: "slow", NO_MODULE)
    for _ in range(3):
        fast([draw.randint(1, 99) for _ in range(9)], 3, False)
    assert fast([1, 2], 0, False) == "slow"
    assert counts.read() == {"changed": 3}


def test_fast_partitioner_of_verl() -> None:
    counts = counts_of("verl.fast-partitioner")
    fast = fix("verl.fast-partitioner").make_partitioner(lambda *_: "slow", NO_MODULE)
    fast(torch.tensor([3, 1, 2]), 2, False)
    assert fast([1, 2], 0, False) == "slow"
    assert counts.read() == {"changed": 1}


def test_sft_balance(draw: random.Random) -> None:
    counts = counts_of("verl.sft-balance")
    module = fix("verl.sft-balance")
    works = [draw.randint(1, 9) for _ in range(8)]
    order = list(range(8))
    module._count(works, order, 2)
    draw.shuffle(order)
    order = order if order != sorted(order) else order[::-1]
    module._count(works, order, 2)
    given = max(sum(works[:4]), sum(works[4:]))
    found = max(sum(works[index] for index in order[:4]), sum(works[index] for index in order[4:]))
    assert counts.read() == {"calls": 2, "changed": 1, "most_work": given / found}


def test_strict_token_budget(draw: random.Random) -> None:
    """Two of 60 and two of 50 under 120 tokens: verl takes two micro-batches of two, by work of their own."""
    counts = counts_of("verl.strict-token-budget")
    settle = fix("verl.strict-token-budget").settle
    settle(4, 60, [60, 60, 50, 50], [6, 6, 5, 5], cap=120, agree=int)
    assert counts.read() == {"calls": 1, "changed": 0, "over": 0}
    # 70 and 70 are over 120, and 240 tokens need two micro-batches as verl counts them.
    settle(4, 70, [70, 70, 70, 30], [7, 7, 7, 3], cap=120, agree=int)
    assert counts.read() == {"calls": 2, "changed": 1, "over": 1, "fullest": 140 / 120}
