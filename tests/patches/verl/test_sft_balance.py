"""The order of verl.sft-balance, and equal shares: pure arithmetic, held to its contract on drawn inputs."""

from __future__ import annotations

import os
import random
import secrets
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from overlay.patches._partition import karmarkar_karp
from overlay.patches._partition.equal import _best_swap, equal_shares
from overlay.patches.verl import sft_balance
from overlay.patches.verl.sft_balance import balanced_order, most_work

RANKS = st.integers(min_value=1, max_value=9)
COSTS = st.lists(st.integers(min_value=0, max_value=2000) | st.integers(0, 10**12), min_size=1, max_size=60)


def cut(costs: list[int], ranks: int) -> list[int]:
    """Return as many of the costs as the ranks divide, at least one for each."""
    return (costs * ranks)[: max(ranks, len(costs) - len(costs) % ranks)]


def most(costs: list[int], parts: list[list[int]]) -> int:
    return max(sum(costs[index] for index in part) for part in parts)


@given(COSTS, RANKS)
@example([0, 0, 0, 0], 2)
@example([7], 1)
@example([5, 5, 5, 5], 4)
@example([10**12, 1, 1, 1], 2)
def test_equal_shares(costs: list[int], ranks: int) -> None:
    costs = cut(costs, ranks)
    parts = equal_shares(costs, ranks)
    assert sorted(chain.from_iterable(parts)) == list(range(len(costs)))
    assert {len(part) for part in parts} == {len(costs) // ranks}
    assert parts == equal_shares(costs, ranks)
    theirs = karmarkar_karp(costs, ranks, equal_size=True)
    assert most(costs, parts) <= most(costs, theirs)
    if most(costs, theirs) * ranks <= sum(costs):  # as good as can be
        assert parts == theirs


@given(COSTS, RANKS)
def test_no_swap_with_the_costliest_share_is_left(costs: list[int], ranks: int) -> None:
    costs = cut(costs, ranks)
    parts = equal_shares(costs, ranks)
    sums = [sum(costs[index] for index in part) for part in parts]
    top = max(sums)
    if top * ranks <= sum(costs) * 1.001:
        return
    giver = sums.index(top)
    for taker, part in enumerate(parts):
        for given_ in parts[giver]:
            for taken in part:
                moved = costs[given_] - costs[taken]
                assert moved <= 0 or moved >= top - sums[taker]


@given(COSTS, COSTS)
def test_the_best_swap_is_that_of_all_pairs(one: list[int], other: list[int]) -> None:
    giver, taker = sorted((one, other), key=sum, reverse=True)
    gap = sum(giver) - sum(taker)
    swap = _best_swap(ranked(giver), ranked(taker), gap)
    best = min(abs(gap - 2 * (mine - theirs)) for mine in giver for theirs in taker)
    if swap is None:
        assert best >= gap
    else:
        assert abs(gap - 2 * (swap[0][0] - swap[1][0])) == best


def ranked(costs: list[int]) -> list[tuple[int, int]]:
    return sorted((cost, index) for index, cost in enumerate(costs))


def test_swaps_bring_a_long_tail_within_a_hundredth() -> None:
    # Where Karmarkar-Karp alone, bound to one of each k costliest, is often a tenth above the mean.
    seed = os.environ.get("OVERLAY_TEST_SEED") or str(secrets.randbelow(2**31))
    print(f"OVERLAY_TEST_SEED={seed}")
    draw = random.Random(seed)
    worst = 0.0
    for _ in range(50):
        lengths = [max(8, min(16384, round(draw.lognormvariate(7, 1)))) for _ in range(256)]
        costs = [24576 * length + length**2 for length in lengths]
        worst = max(worst, most(costs, equal_shares(costs, 4)) * 4 / sum(costs))
    assert worst <= 1.01


@given(COSTS, RANKS)
def test_the_order_has_each_share_together_and_the_least_work_at_its_ends(
    costs: list[int], ranks: int
) -> None:
    costs = cut(costs, ranks)
    order = balanced_order(costs, ranks)
    assert sorted(order) == list(range(len(costs)))
    size = len(costs) // ranks
    found = [order[start : start + size] for start in range(0, len(order), size)]
    assert [sorted(share) for share in found] == [sorted(share) for share in equal_shares(costs, ranks)]
    for share in found:
        work = [costs[index] for index in share]
        top = work.index(max(work))
        assert work[: top + 1] == sorted(work[: top + 1])
        assert work[top:] == sorted(work[top:], reverse=True)
        assert sorted(work)[:2] == sorted([work[0], work[-1]])[: len(work)]
    assert most_work([costs[index] for index in order], ranks) == most(costs, found)


class Client:
    """A training client that keeps what it is sent, and splits nothing."""

    def __init__(self, ranks: list[int]) -> None:
        self.ranks, self.sent = ranks, list[Any]()

    def _query_dispatch_info(self, mesh: str) -> list[int]:
        assert mesh == "train"
        return self.ranks

    def train_batch(self, data: Any) -> None:
        self.sent.append(data)


def trainer(client: Client, **settings: Any) -> Any:
    return SimpleNamespace(
        config=SimpleNamespace(trainer=_Settings(settings)),
        training_client=client,
        _get_batch_seqlens=lambda data: data,
    )


class _Settings(dict[str, Any]):
    __getattr__ = dict.__getitem__


def test_the_client_is_as_it_was_when_fit_ends_and_when_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sft_balance, "_balanced", lambda data, lengths, ranks: (data, lengths, ranks))

    def original(self: Any) -> str:
        self.training_client.train_batch("batch")
        if self.config.trainer.get("fail"):
            raise RuntimeError
        return "done"

    fit = sft_balance.make_fit(original, SimpleNamespace())  # type: ignore[arg-type]
    client = Client([0, 0, 1, 1])
    before = client.train_batch
    assert fit(trainer(client)) == "done"
    assert client.sent == [("batch", "batch", 2)]
    assert client.train_batch == before
    with pytest.raises(RuntimeError):
        fit(trainer(client, fail=True))
    assert client.train_batch == before
    fit(trainer(client, balance_batch=False))
    assert client.sent[-1] == "batch"
