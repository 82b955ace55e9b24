"""Comparisons of ranks that are threads and share a store: no process is started, and no clock is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from simulated_ranks import Store, compare

from overlay.compat import agreement as compared
from overlay.errors import AgreementError, OverlayError
from overlay.ledger import PatchStatus
from overlay.records import agreement
from overlay.records.agreement import Account, Statement
from overlay.runtime.engine import Engine

MANY = 256
FACTS = {"overlay": "1", "strict": "no", "a.b": "in force", "a.b source of up.core:f": "d" * 64}
NOTES = {"a.b source of up.core:f": "up 1.0, /site/up/core.py"}
SAID = Statement(facts=FACTS, notes=NOTES, outcome={"a.b": "in place"})


def other(*without: str, **facts: str) -> Statement:
    """Return what a rank says of which some facts are others, or are not there."""
    return SAID.replace(
        facts={name: text for name, text in {**FACTS, **facts}.items() if name not in without}
    )


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def all_but(world: int, odd: Mapping[int, Statement | None]) -> dict[int, Statement]:
    """Return what the ranks of a world say, without those of which there is nothing."""
    said = {rank: odd.get(rank, SAID) for rank in range(world)}
    return {rank: one for rank, one in said.items() if one is not None}


def test_three_kinds_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = SAID.replace(notes={"a.b source of up.core:f": "up 1.1, /other/up/core.py"})
    site = "a.b source of up.core:f"
    odd = {
        5: other(strict="yes"),
        9: elsewhere.replace(facts={**FACTS, site: "e" * 64}),
        11: other("a.b", site),
    }
    (said,) = set(compare(monkeypatch, all_but(16, odd), 16).values())
    assert lines(said) == [
        "the ranks do not run the same:",
        "a.b",
        "ranks 0-10,12-15 in force",
        "rank 11 absent",
        "strict",
        "ranks 0-4,6-15 no",
        "rank 5 yes",
    ]
    (said,) = set(compare(monkeypatch, all_but(16, {9: odd[9]}), 16).values())
    assert lines(said)[1:] == [
        site,
        "ranks 0-8,10-15 dddddddddddd (up 1.0, /site/up/core.py)",
        "rank 9 eeeeeeeeeeee (up 1.1, /other/up/core.py)",
    ]


def test_what_was_not_imported_yet_is_no_difference_and_what_was_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ["in place", "", "left out"]
    said = {rank: SAID.replace(outcome={"a.b": word} if word else {}) for rank, word in enumerate(words)}
    (text,) = set(compare(monkeypatch, said, 3).values())
    assert lines(text) == ["the ranks do not run the same:", "a.b", "rank 0 in place", "rank 2 left out"]
    for left in (0, 2):
        pair = {0: said[left], 1: said[1]}
        assert set(compare(monkeypatch, pair, 2).values()) == {""}


@pytest.mark.parametrize(
    ("state", "sites", "word"),
    [("waiting", "waiting", ""), ("waiting", "applied", "in place"), ("applied", "applied", "in place"),
     ("incomplete", "incomplete", "incomplete"), ("failed", "failed", "left out"),
     ("skipped", "", "left out")],
)  # fmt: skip
def test_what_became_of_a_patch_that_applies(state: str, sites: str, word: str) -> None:
    from overlay.ledger import SiteStatus

    found = tuple(SiteStatus(site="up.core:f", project="up", state=one) for one in sites.split())
    status = PatchStatus(patch="a.b", state=state, sites=found, reason="/wd0/x.py:5")
    assert agreement._outcome(status) == word
    account = agreement.account_of(Engine(dict).status().replace(patches=(status,)), {"digest": "d"})
    assert account.applied == (("a.b",) if word == "in place" else ())


# -- ranks that do not come, or come late ----------------------------------------------------------------


@pytest.mark.parametrize("silent", [(3, 4, 9), (0,), tuple(range(1, 16)), tuple(range(15))])
def test_silent_ranks_are_all_named_by_all_others(
    monkeypatch: pytest.MonkeyPatch, silent: Sequence[int]
) -> None:
    found = compare(monkeypatch, all_but(16, dict.fromkeys(silent)), 16, patience=16.0)
    (said,) = set(found.values())
    assert said.startswith(f"{agreement.spans(silent)} did not take part within 16 s: ")
    assert said.count("\n") == 1


def test_those_who_come_are_compared_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    (said,) = set(compare(monkeypatch, all_but(8, {2: None, 5: other(strict="yes")}), 8).values())
    assert said.startswith("rank 2 did not take part within 590 s: overlay was not enabled there, or its sel")
    assert lines(said)[1:] == [
        "the ranks do not run the same:",
        "strict",
        "ranks 0-1,3-4,6-7 no",
        "rank 5 yes",
    ]


def test_a_rank_that_is_late_by_minutes_is_waited_for_and_named_meanwhile(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    found = compare(monkeypatch, all_but(4, {}), 4, late={1: 70.0, 3: 589.0})
    assert set(found.values()) == {""}
    (line,) = (line for line in capfd.readouterr().err.splitlines() if "did not join" in line)
    assert "ranks 1,3 did not join the comparison of patches within 60 s: " in line
    assert "overlay is not enabled there, or its selection drops the patch that compares, or" in line
    assert "waiting another 530 s" in line


@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_comes_when_the_others_have_given_up_is_told_the_same(
    monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    found = compare(monkeypatch, all_but(4, {}), 4, patience=40.0, late={rank: 55.0})
    (said,) = set(found.values())
    assert said.startswith(f"rank {rank} did not take part within 40 s: ")


def test_each_comparison_stands_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    cases = [
        (SAID, []),
        (other(strict="yes"), ["strict", "ranks 0,2 no", "rank 1 yes"]),
        (SAID.replace(notes={"a.b": "/node1/up"}), []),  # notes are not compared
        (Statement(), ["overlay", "ranks 0,2 1", "rank 1 not enabled"]),
        (SAID, []),
    ]
    for odd, rows in cases:
        (said,) = set(compare(monkeypatch, all_but(3, {1: odd}), 3, store=store).values())
        assert bool(said) == bool(rows)
        assert lines(said)[1:] == rows


class Mortal(Store):
    """A store that outlives its ranks: those that are `mortal` die while they wait for the others."""

    mortal = False

    def check(self, keys: Sequence[str]) -> bool:
        if self.mortal and keys[0].endswith(("/verdict", "/all have heard")):
            raise KeyError("died")
        return super().check(keys)


@pytest.mark.parametrize("died", [[[0]], [[1]], [[0, 2]], [[0], [0, 2], [0]], [[0], [1], [0]], [[2], [0, 1]]])
@pytest.mark.parametrize("late", [{}, {0: 5.0}, {1: 5.0, 2: 9.0}, {0: 300.0, 2: 320.0}])
def test_ranks_that_are_restarted_agree_whoever_died_waiting(
    monkeypatch: pytest.MonkeyPatch, died: list[list[int]], late: dict[int, float]
) -> None:
    """As torchrun restarts them, which keeps the store. What the dead have said counts no more."""
    store = Mortal()
    for generation in died:
        store.mortal = True
        said = dict.fromkeys(generation, other(strict="yes"))
        assert all("died" in text for text in compare(monkeypatch, said, 3, store=store).values())
    store.mortal = False
    assert compare(monkeypatch, all_but(3, {}), 3, store=store, late=late) == dict.fromkeys(range(3), "")
    # From then on they are in step, and hear of what is wrong.
    (text,) = set(compare(monkeypatch, all_but(3, {1: other(strict="yes")}), 3, store=store).values())
    assert lines(text)[1:] == ["strict", "ranks 0,2 no", "rank 1 yes"]


def test_ranks_that_are_restarted_agree_after_one_did_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    for _ in range(2):
        found = compare(monkeypatch, all_but(3, {1: None}), 3, store=store)
        assert all(said.startswith("rank 1 did not take part") for said in found.values())
    late = {0: 5.0, 2: 7.0}
    assert compare(monkeypatch, all_but(3, {}), 3, store=store, late=late) == dict.fromkeys(range(3), "")


def test_a_rank_that_does_not_come_back_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Mortal()
    store.mortal = True
    compare(monkeypatch, {1: SAID}, 3, store=store)
    store.mortal = False
    (said,) = set(compare(monkeypatch, all_but(3, {1: None}), 3, store=store).values())
    assert said.startswith("rank 1 did not take part within 590 s: ")


def test_two_groups_of_the_same_ranks_do_not_hear_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    found = [compare(monkeypatch, {rank: SAID}, 2, store=store, name=f"group {rank}") for rank in range(2)]
    assert [one[rank].partition(" did")[0] for rank, one in enumerate(found)] == ["rank 1", "rank 0"]


def test_if_who_judges_dies_the_others_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: Any) -> None:
        raise OSError("killed")

    monkeypatch.setattr(compared.Comparison, "_judge", die)
    found = sorted(compare(monkeypatch, all_but(4, {}), 4).values())
    assert found[0].startswith("OSError('killed')")
    assert set(found[1:]) == {"the ranks were not compared: who was to do it hangs or has ended"}


def test_a_store_that_fails_is_an_error_of_agreement() -> None:
    class Gone:
        def add(self, *_: Any) -> int:
            raise RuntimeError("Connection reset by peer")

    with pytest.raises(AgreementError, match="their store failed: Connection reset by peer"):
        compared.Comparison(Gone(), "0", [0, 1], 0).agree(SAID, 1.0)


# -- the patience of a group -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("timeout", "patience"), [(5.0, 4.0), (20.0, 16.0), (600.0, 590.0), (1800.0, 1790.0)]
)
def test_ranks_are_waited_for_almost_as_long_as_their_group_waits(timeout: float, patience: float) -> None:
    pytest.importorskip("torch")
    from datetime import timedelta

    import torch.distributed as dist

    given: dict[str, Any] = {"store": dist.HashStore(), "rank": 0, "world_size": 1}  # type: ignore[attr-defined]
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout), **given)
    try:
        assert compared._patience(None) == patience
        assert compared._patience(dist.new_group([0], timeout=timedelta(seconds=50))) == 40.0
        # A group that somebody has wrapped.
        assert compared._patience(object()) == dist.default_pg_timeout.total_seconds() - compared.MARGIN
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"group": "x"}, "'x' is no process group"),
        ({"timeout": -1}, "timeout=-1 is no"),
        ({"timeout": "x"}, "timeout='x' is no"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_a_sentence(given: dict[str, Any], message: str) -> None:
    dist = pytest.importorskip("torch.distributed")
    import overlay

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(OverlayError, match=message):
            overlay.agree(**given)
    finally:
        dist.destroy_process_group()


def test_without_a_process_group_there_is_nothing_to_compare() -> None:
    pytest.importorskip("torch")
    import overlay

    with pytest.raises(OverlayError, match="there is no process group"):
        overlay.agree()


# -- many ranks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("odd", [{}, {7: other(strict="yes")}, {7: None}])
def test_only_who_judges_asks_more_where_there_are_more_ranks(
    monkeypatch: pytest.MonkeyPatch, odd: dict[int, Statement | None]
) -> None:
    asked: dict[int, list[int]] = {}
    for world in (16, MANY):
        store = Store()
        # How often each looks whether there is a verdict is a matter of time, and not of how many they are.
        (said,) = set(compare(monkeypatch, all_but(world, odd), world, patience=1.0, store=store).values())
        assert bool(said) == bool(odd)
        asked[world] = sorted(store.asked[str(rank)] - store.looked[str(rank)] for rank in range(world))
    for found in asked.values():
        # Only two ask more than a handful: who judges, and who says whom all wait for.
        assert found[-3] <= 16
    # Of each rank they ask whether it came, and what it said: only if there is something to tell.
    assert asked[MANY][-1] <= 16 + (2 * MANY if odd else 0)


def test_only_the_first_runs_of_ranks_are_named_among_many(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = dict.fromkeys(range(0, MANY, 2), other(strict="yes"))
    (said,) = set(compare(monkeypatch, all_but(MANY, odd), MANY).values())
    both = [",".join(map(str, range(first, 2 * agreement.RUNS, 2))) for first in (0, 1)]
    rows = [f"ranks {both[0]} and 64 more yes", f"ranks {both[1]} and 64 more no"]
    assert lines(said)[1:] == ["strict", *rows]


def test_spans() -> None:
    assert agreement.spans([0]) == "rank 0"
    assert agreement.spans([4, 2, 3, 9]) == "ranks 2-4,9"
    assert agreement.spans([]) == "no rank"


def test_who_agrees_hears_what_is_applied_on_all_and_on_some_and_what_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each may have imported other modules: a patch may have been refused where one rank alone came by."""
    accounts: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
        (("a", "b"), ()), (("b",), ("x", "y")), (("b", "c"), ("x",))
    ]  # fmt: skip
    heard = []
    agree = compared.Comparison.agree

    def listen(*given: Any) -> Any:
        heard.append(agree(*given))
        return heard[-1]

    monkeypatch.setattr(compared.Comparison, "agree", listen)
    ranks = {
        rank: SAID.replace(account=Account(applied=ids, refused=not_these, half_patched=0, digest="d"))
        for rank, (ids, not_these) in enumerate(accounts)
    }
    assert set(compare(monkeypatch, ranks, 3).values()) == {""}
    assert heard == [(["b"], ["a", "b", "c"], ["x", "y"])] * 3
