"""The order of verl.sft-balance, and equal shares: pure arithmetic, held to its contract on drawn inputs."""

from __future__ import annotations

import random
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from overlay.patches._partition import equal, karmarkar_karp
from overlay.patches._partition.equal import _best_swap, equal_shares
from overlay.patches.verl import sft_balance
from overlay.patches.verl.sft_balance import balanced_order

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


@example([0, 0, 0, 0, 1, 1, 1, 4, 3], 3)
@given(COSTS, RANKS)
def test_no_swap_with_the_costliest_share_is_left(costs: list[int], ranks: int) -> None:
    costs = cut(costs, ranks)
    parts = equal_shares(costs, ranks)
    sums = [sum(costs[index] for index in part) for part in parts]
    top = max(sums)
    if top * ranks <= sum(costs) * 1.001:
        return

    def has_swap(giver: int) -> bool:
        return any(
            0 < costs[given_] - costs[taken] < top - sums[taker]
            for taker, part in enumerate(parts)
            for taken in part
            for given_ in parts[giver]
        )

    # Of shares that cost alike, one that cannot get cheaper decides: a swap with another helps nobody.
    assert not all(has_swap(giver) for giver, total in enumerate(sums) if total == top)


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


@pytest.mark.parametrize("cut_at", [10**9, 131072])
@pytest.mark.parametrize(("samples", "ranks"), [(1024, 64), (4096, 8), (4096, 256), (8192, 512), (8192, 64)])
def test_a_heavy_tail_is_as_even_as_its_longest_sample_allows_after_few_looks(
    samples: int, ranks: int, cut_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(f"{samples}/{ranks}")
    lengths = [min(cut_at, int(500 * draw.paretovariate(1.1))) for _ in range(samples)]
    costs = [24576 * length + length**2 for length in lengths]
    looked = []

    def counted(giver: Any, taker: Any, gap: int) -> Any:
        looked.append(len(giver))
        return _best_swap(giver, taker, gap)

    monkeypatch.setattr(equal, "_best_swap", counted)
    parts = equal_shares(costs, ranks)
    assert sorted(chain.from_iterable(parts)) == list(range(samples))
    assert {len(part) for part in parts} == {samples // ranks}
    assert sum(looked) <= 2 * (equal.LOOKS + samples)
    # The longest of all, and the shortest there are for the rest of its share.
    least = max(costs) + sum(sorted(costs)[: samples // ranks - 1])
    mean = sum(costs) / ranks
    assert most(costs, parts) <= 1.02 * max(mean, least)
    assert most(costs, parts) <= most(costs, karmarkar_karp(costs, ranks, equal_size=True))


@given(COSTS, RANKS)
def test_no_share_can_cost_less_than_the_least_top(costs: list[int], ranks: int) -> None:
    costs = cut(costs, ranks)
    shares = equal.dealt(costs, ranks)
    assert sorted(chain.from_iterable(shares)) == list(range(len(costs)))
    assert {len(share) for share in shares} == {len(costs) // ranks}
    assert equal.least_top(costs, ranks) <= min(most(costs, shares), most(costs, equal_shares(costs, ranks)))


@given(COSTS, RANKS)
def test_the_order_has_each_share_together_and_the_least_work_at_its_ends(
    costs: list[int], ranks: int
) -> None:
    costs = cut(costs, ranks)
    order = balanced_order(costs, ranks)
    assert sorted(order) == list(range(len(costs)))
    size = len(costs) // ranks
    found = [order[start : start + size] for start in range(0, len(order), size)]
    given = [list(range(start, start + size)) for start in range(0, len(order), size)]
    parts = equal_shares(costs, ranks)
    kept = given if most(costs, given) < most(costs, parts) else parts
    assert [sorted(share) for share in found] == [sorted(share) for share in kept]
    for share in found:
        work = [costs[index] for index in share]
        top = work.index(max(work))
        assert work[: top + 1] == sorted(work[: top + 1])
        assert work[top:] == sorted(work[top:], reverse=True)
        assert sorted(work)[:2] == sorted([work[0], work[-1]])[: len(work)]


class Client:
    """A training client that keeps what it is sent, and splits nothing."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def _query_dispatch_info(self, mesh: str) -> list[int]:
        assert mesh == "train"
        return [0, 0, 1, 1]

    def train_batch(self, data: Any) -> None:
        self.sent.append(data)


class Trainer:
    """A trainer whose `fit` asks for what verl 0.8's does, in its order, and keeps what it is told."""

    def __init__(self, *, fail_at: int = -1, **settings: Any) -> None:
        self.config = OmegaConf.create({"trainer": settings})
        OmegaConf.set_struct(self.config, value=True)
        OmegaConf.set_readonly(self.config, value=True)
        self.training_client = Client()
        self.fail_at, self.logged, self.told = fail_at, list[Any](), list[Any]()

    def _get_batch_seqlens(self, data: Any) -> Any:
        return data

    def fit(self) -> str:
        self.logged.append(OmegaConf.to_container(self.config))
        for step in range(3):
            self._get_batch_seqlens(data=step)
            self.told.append(self.config.trainer.balance_batch)
            if step == self.fail_at:
                raise RuntimeError
            self.training_client.train_batch(step)
            self.told.append(self.config.trainer.get("balance_batch"))
        return "done"


@pytest.fixture
def fit(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sft_balance, "_balanced", lambda data, ranks: (data, ranks))
    return sft_balance.fit(Trainer.fit, SimpleNamespace())  # type: ignore[arg-type]


@pytest.mark.parametrize("settings", [{"balance_batch": True}, {}])
def test_fit_is_told_that_it_is_not_to_balance_and_only_where_it_asks(
    fit: Any, settings: dict[str, Any]
) -> None:
    trainer = Trainer(**settings)
    config = trainer.config
    assert fit(trainer) == "done"
    assert trainer.training_client.sent == [(0, 2), (1, 2), (2, 2)]
    assert trainer.told == [False, settings.get("balance_batch")] * 3
    assert trainer.logged == [{"trainer": settings}]
    assert trainer.config is config
    assert config.trainer == settings


def test_a_fit_that_is_not_to_balance_runs_as_it_is(fit: Any) -> None:
    trainer = Trainer(balance_batch=False)
    assert fit(trainer) == "done"
    assert trainer.training_client.sent == [0, 1, 2]
    assert trainer.told == [False] * 6


@pytest.mark.parametrize("fail_at", [0, 1])
def test_the_trainer_is_as_it_was_when_fit_fails_and_can_fit_again(fit: Any, fail_at: int) -> None:
    trainer = Trainer(balance_batch=True, fail_at=fail_at)
    client, config = trainer.training_client, trainer.config
    before = [dict(vars(held)) for held in (trainer, client)]
    with pytest.raises(RuntimeError):
        fit(trainer)
    assert [set(vars(held)) for held in (trainer, client)] == [set(held) for held in before]
    assert trainer.config is config
    trainer.fail_at = -1
    assert fit(trainer) == "done"
    assert client.sent[-3:] == [(0, 2), (1, 2), (2, 2)]


def test_attributes_of_the_instances_themselves_are_put_back(fit: Any) -> None:
    # So does verl's worker group have its methods.
    trainer = Trainer(balance_batch=True)
    client, sent = trainer.training_client, list[Any]()
    send, count = sent.append, trainer._get_batch_seqlens
    vars(client)["train_batch"], vars(trainer)["_get_batch_seqlens"] = send, count
    fit(trainer)
    assert sent == [(0, 2), (1, 2), (2, 2)]
    assert vars(client)["train_batch"] is send
    assert vars(trainer)["_get_batch_seqlens"] is count
