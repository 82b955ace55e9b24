"""Comparisons of ranks that are threads and share a store: no process is started."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from overlay.errors import AgreementError, OverlayError
from overlay.ledger import PatchStatus, Status
from overlay.pinning import agreement

pytest.importorskip("torch")
from benches import agreement as agreement_bench
from overlay.compat.agreement import compare_through
from overlay.compat.comparison import Talk
from overlay.compat.store_keys import Keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

INSIDE = Path(__file__).parents[2] / "scripts" / "environment" / "inside.py"


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


FACTS = {"overlay": "enabled"}
ALIKE = dict.fromkeys(range(3), FACTS)


@pytest.fixture
def store() -> Any:
    from torch.distributed import HashStore  # type: ignore[attr-defined]

    return HashStore()


def together(threads: Iterable[threading.Thread]) -> None:
    """Start threads, and wait for all of them."""
    threads = list(threads)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)


def compared(
    store: Any,
    ranks: dict[int, dict[str, str]],
    world: int = 3,
    timeout: float = 20.0,
    starts: dict[int, float] | None = None,
) -> dict[int, str]:
    """Compare ranks that are threads and share nothing but a store, and return what each says or raises.

    Args:
        store: That.
        ranks: What is so on each rank that takes part.
        world: How many are in the group.
        timeout: Seconds that a rank waits.
        starts: Seconds after which ranks come that do not come at once.

    """
    found = dict.fromkeys(ranks, "did not come back")

    def take_part(me: int, facts: dict[str, str]) -> None:
        time.sleep((starts or {}).get(me, 0.0))
        talk, files = Talk(store, "test", range(world)), {"up.core": f"/rank{me}/up/core.py"}
        part = talk.follow if me else lambda _me, *given: talk.lead(*given)
        try:
            found[me] = part(me, facts, files, timeout)
        except (AgreementError, RuntimeError) as error:
            found[me] = f"raised {error!r}"

    together(threading.Thread(target=take_part, args=rank, name=str(rank[0])) for rank in ranks.items())
    return found


def simulated(
    store: Any, world: int, odd: dict[int, dict[str, str]], silent: Sequence[int] = (), timeout: float = 60.0
) -> list[str]:
    """Compare ranks that have the same but for some, and return what each says that is not silent."""
    alike = {**FACTS, "a: content": "1"}
    ranks = {rank: {**alike, **odd.get(rank, {})} for rank in range(world) if rank not in silent}
    return list(compared(store, ranks, world, timeout).values())


def test_if_the_first_rank_cannot_compare_all_are_told(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> list[str]:
        raise RuntimeError("no more")

    monkeypatch.setattr(Talk, "_differences", broken)
    began = time.monotonic()
    first, *others = simulated(store, 4, {}, timeout=1.0)
    assert first == "raised RuntimeError('no more')"
    assert set(others) == {"rank 0 could not compare: RuntimeError: no more"}
    assert time.monotonic() - began < 5


def test_three_kinds_of_ranks(store: Any) -> None:
    odd = {5: {"a: up source of up.core:f": "x"}, 9: {"a: content": "2"}}
    found = simulated(store, 64, odd)
    assert len(set(found)) == 1
    assert lines(found[0]) == [
        "the ranks do not run the same:",
        "a: content",
        "ranks 0-8,10-63 1",
        "rank 9 2",
        "a: up source of up.core:f",
        "ranks 0-4,6-63 absent",
        "rank 5 x in /rank5/up/core.py",
    ]


def test_silent_ranks_are_all_named(store: Any) -> None:
    (said,) = set(simulated(store, 16, {}, silent=(3, 4, 9), timeout=1.0))
    assert said.startswith("ranks 3-4,9 did not take part within 1 s")


def test_spans() -> None:
    assert agreement.spans([0]) == "rank 0"
    assert agreement.spans([4, 2, 3, 9]) == "ranks 2-4,9"


def test_without_a_process_group_there_is_nothing_to_compare() -> None:
    import overlay

    with pytest.raises(OverlayError, match="there is no process group"):
        overlay.agree()


@pytest.mark.parametrize("state", ["armed", "applied", "incomplete"])
def test_a_patch_whose_module_was_not_used_yet_is_as_good_as_applied(state: str) -> None:
    def said(state: str) -> dict[str, str]:
        patches = (PatchStatus(patch="up.fix", revision=1, state=state),)
        status = Status(
            enabled=True, strict=False, version="1", python="3", pid=1, selection=("up.fix",), patches=patches
        )
        return agreement.facts_of({"python": "3", "overlay": {}, "pack": [], "patch": []}, status)

    assert (said(state) == said("applied")) == (state != "incomplete")


def test_two_groups_of_the_same_ranks_do_not_hear_each_other(store: Any) -> None:
    found = ["nothing"] * 2

    def rank(me: int) -> None:
        try:
            compare_through(store, [0, 1], me, 0.3, FACTS, {}, name=f"group {me}")
        except AgreementError as error:
            found[me] = str(error)

    together(threading.Thread(target=rank, args=(me,)) for me in range(2))
    assert [text.partition(" did")[0] for text in found] == ["rank 1", "rank 0"]


# -- one after the other, through one store ----------------------------------------------------------


def test_what_differed_before_differs_no_more(store: Any) -> None:
    # Other processes, in the same places: what the earlier ones said is not taken for their answer.
    for _ in range(3):
        assert set(compared(store, ALIKE).values()) == {""}
        (said,) = set(compared(store, {**ALIKE, 2: {"overlay": "enabled", "a": "1"}}).values())
        assert "rank 2" in said


def test_a_silent_rank_is_silent_once(store: Any) -> None:
    for silent in range(3):
        there = {rank: FACTS for rank in ALIKE if rank != silent}
        (said,) = set(compared(store, there, timeout=0.3).values())
        assert said.startswith(f"rank {silent} did not take part within 0.3 s: ")
        assert set(compared(store, ALIKE).values()) == {""}


def test_nobody_waits_for_a_first_rank_that_has_ended_when_another_comes(store: Any) -> None:
    Talk(store, "test", [0, 1, 2])._call(agreement.digest_of(FACTS))  # and dies
    assert set(compared(store, ALIKE).values()) == {""}


def test_whoever_has_answered_a_first_rank_that_has_ended_answers_the_next(store: Any) -> None:
    Talk(store, "test", [0, 1, 2])._call(agreement.digest_of(FACTS))  # and dies
    found: dict[int, str] = {}

    def follow(me: int) -> None:
        found[me] = Talk(store, "test", [0, 1, 2]).follow(me, FACTS, {}, 5.0)

    threads = [threading.Thread(target=follow, args=(me,)) for me in (1, 2)]
    for thread in threads:
        thread.start()
    store.wait(["test/1/rank 1", "test/1/rank 2"])
    assert compared(store, {0: FACTS}) == {0: ""}
    for thread in threads:
        thread.join(60)
    assert found == {1: "", 2: ""}


def test_a_first_rank_that_asks_and_ends_is_named(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlay.compat.comparison.SLACK", 0.2)
    Talk(store, "test", [0, 1, 2])._call(agreement.digest_of(FACTS))
    said = compared(store, {1: FACTS, 2: FACTS}, timeout=0.3)
    assert set(said.values()) == {
        "rank 0 asked, and has not said what came of it within 0.5 s: it hangs or has ended\n"
    }


def test_all_that_are_silent_are_named_where_the_first_is_among_them(store: Any) -> None:
    said = compared(store, {2: FACTS}, timeout=0.3)[2]
    assert said.startswith("ranks 0-1 did not take part within 0.3 s: ")


def test_a_first_rank_that_comes_when_the_others_have_given_up_says_so(store: Any) -> None:
    said = compared(store, {1: FACTS, 2: FACTS}, timeout=0.3)
    assert all(text.startswith("rank 0 did not take part within 0.3 s: ") for text in said.values())
    assert compared(store, {0: FACTS}, timeout=0.3) == {
        0: "ranks 1-2 had given up waiting for rank 0, which came later\n"
    }
    assert set(compared(store, ALIKE).values()) == {""}


def test_a_rank_that_comes_when_the_others_have_given_up_is_told_what_they_said(store: Any) -> None:
    (earlier,) = set(compared(store, {0: FACTS, 1: FACTS}, timeout=0.3).values())
    said = compared(store, {2: FACTS}, timeout=0.3)[2]
    assert f"a comparison had ended before rank 2 came, and said: {earlier}" in said
    assert set(compared(store, ALIKE).values()) == {""}


# -- ranks that come at other times, a first rank that ends, a store that is slow -----------------------


def come_at(store: Any, starts: dict[int, float], world: int, timeout: float = 0.5) -> dict[int, str]:
    """Compare ranks that come after so many seconds each, and return what each says."""
    return compared(store, dict.fromkeys(starts, FACTS), world, timeout, starts)


def test_ranks_that_come_one_after_the_other_are_told_the_same(store: Any) -> None:
    found = come_at(store, {rank: rank / 10 for rank in range(8)}, 8, timeout=5.0)
    assert found == dict.fromkeys(range(8), "")


def test_without_a_first_rank_all_say_what_the_first_to_give_up_found(store: Any) -> None:
    # Ranks 10 to 12 come when rank 1 has given up; all others have said before that they wait.
    found = come_at(store, {rank: 0.03 * rank if rank < 10 else 1.2 for rank in range(1, 13)}, 16, 0.8)
    (early,) = {found[rank] for rank in range(1, 10)}
    assert early.startswith("ranks 0,10-15 did not take part within 0.8 s: ")
    for rank in (10, 11, 12):
        own, _, before = found[rank].partition("\n")
        assert own.startswith("ranks 0-9,13-15 did not take part within 0.8 s: ")
        assert before == f"a comparison had ended before rank {rank} came, and said: {early}"


def test_who_looks_is_waited_for_by_ranks_that_come_meanwhile(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round ends before anybody looks: what is slow is the look, as on a machine that is busy."""
    entered = Keys.entered

    def slowly(self: Keys, name: str) -> list[Any]:
        time.sleep(1.2)
        return entered(self, name)

    monkeypatch.setattr(Keys, "entered", slowly)
    found = come_at(store, {1: 0.0, 2: 0.1, 3: 1.3}, 5, 0.8)
    assert found[1] == found[2]
    assert found[1].startswith("ranks 0,3-4 did not take part within 0.8 s: ")
    assert found[3].startswith("ranks 0-2,4 did not take part within 0.8 s: ")
    assert found[3].endswith(found[1])


def test_who_comes_after_the_verdict_says_what_it_was(store: Any) -> None:
    found = come_at(store, {0: 0.0, 1: 0.0, 2: 1.6}, 4, 0.8)
    assert found[0] == found[1]
    assert found[0].startswith("ranks 2-3 did not take part within 0.8 s: ")
    assert f"a comparison had ended before rank 2 came, and said: {found[0]}" in found[2]


def test_who_comes_when_others_have_given_up_a_first_rank_that_ended_says_so(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overlay.compat.comparison.SLACK", 0.2)
    Talk(store, "test", range(4))._call(agreement.digest_of(FACTS))  # and dies
    found = come_at(store, {1: 0.0, 2: 0.1, 3: 1.6}, 4, 0.6)
    assert found[1] == found[2]
    assert found[1].startswith("rank 3 did not take part within 0.6 s: ")
    assert found[3].endswith(f"a comparison had ended before rank 3 came, and said: {found[1]}")


def test_a_restart_does_not_repeat_what_an_earlier_start_found(store: Any) -> None:
    come_at(store, {1: 0.0, 2: 0.0}, 4, 0.6)
    found = come_at(store, {1: 0.0, 2: 0.0, 3: 0.0}, 4, 0.6)
    assert all(said.startswith("rank 0 did not take part within 0.6 s: ") for said in found.values())


class Slow:
    """A store that takes its time for each answer."""

    def __init__(self, store: Any, seconds: float) -> None:
        self._store, self._seconds = store, seconds

    def __getattr__(self, name: str) -> Any:
        time.sleep(self._seconds)
        return getattr(self._store, name)


@pytest.mark.parametrize("gone", [(), (5, 6)])
def test_a_store_that_is_slow_names_who_is_missing_all_the_same(store: Any, gone: tuple[int, ...]) -> None:
    starts = {rank: 0.0 for rank in range(8) if rank not in gone}
    found = come_at(Slow(store, 0.05), starts, 8, 2.0)
    (said,) = set(found.values())
    assert said.partition(" did")[0] == ("ranks 5-6" if gone else "")
    assert len(found) == len(starts)


# -- many ranks ---------------------------------------------------------------------------------------

MANY = 256


def test_what_the_first_rank_asks_does_not_grow_with_the_ranks_that_agree() -> None:
    asked = {}
    for world in (8, MANY):
        store = Counted()
        found = simulated(store, world, {})
        assert found == [""] * world
        asked[world] = store.of_first
    assert asked[8] == asked[MANY] < 10


def test_what_the_first_rank_asks_hardly_grows_with_the_ranks_that_are_silent() -> None:
    asked = {}
    for world in (8, MANY):
        store = Counted()
        # It takes a while until all threads have begun where other tests run as well.
        timeout = 1.0 if world == 8 else 4.0
        said = simulated(store, world, {}, silent=range(1, world, 2), timeout=timeout)[0]
        assert said.startswith("ranks 1,3,5,7" if world == MANY else "ranks 1,3,5,7 did not take part")
        asked[world] = store.of_first
    assert asked[MANY] <= asked[8] < 20


@pytest.mark.nightly("the same, of more ranks", world=(4096,))
@pytest.mark.parametrize("world", [256, 4096])
@pytest.mark.skipif(sys.platform != "linux", reason="thousands of connections, and their clock, are Linux's")
def test_many_ranks_through_a_real_store(world: int) -> None:
    """All cases of the benchmark, which fails where ranks are told different things."""
    command = [sys.executable, str(INSIDE), "benches.agreement", "--ranks", str(world)]
    # Enough for all to have come on a machine that is busy: who comes later is told so, and not the same.
    command += ["--timeout", str(max(3, world // 200))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"{world:,} ranks through {world - 1:,} connections")
    assert len(lines) == 2 + len(agreement_bench.CASES)
    all_agree = lines[2].split()
    # Of the first rank, with any number of ranks; and of the other that asks most.
    assert all_agree[:2] == ["all", "agree"]
    assert int(all_agree[-3]) < 10
    assert int(all_agree[-1]) < 20


@pytest.mark.parametrize(
    ("odd", "rows"),
    [
        ({7}, ["ranks 0-6,8-255 1", "rank 7 2"]),
        ({0}, ["rank 0 2", "ranks 1-255 1"]),
        (set(range(0, MANY, 2)), None),
    ],
)
def test_whoever_differs_is_named_among_many(odd: set[int], rows: list[str] | None) -> None:
    (said,) = set(simulated(Counted(), MANY, {rank: {"a: content": "2"} for rank in odd}))
    if rows is None:
        first = ",".join(map(str, range(0, 2 * agreement.RUNS, 2)))
        rows = [f"ranks {first} and 64 more 2", f"ranks {odd_numbers()} and 64 more 1"]
    assert lines(said) == ["the ranks do not run the same:", "a: content", *rows]


def odd_numbers() -> str:
    return ",".join(map(str, range(1, 2 * agreement.RUNS, 2)))


def test_a_store_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlay.compat.store_keys.PATIENCE", 0.3)
    forever = threading.Event()

    class Hanging:
        def add(self, *_: Any) -> int:
            forever.wait(30)
            return 1

    with pytest.raises(
        AgreementError, match="could not be compared: their store failed: it has not answered"
    ):
        compare_through(Hanging(), [0, 1], 1, 0.3, FACTS, {})
    forever.set()


class Counted:
    """A store that many threads share, and what the first rank has asked of it."""

    def __init__(self) -> None:
        from torch.distributed import HashStore  # type: ignore[attr-defined]

        self._store = HashStore()
        self.of_first = 0

    def __getattr__(self, name: str) -> Any:
        self.of_first += threading.current_thread().name == "0"
        return getattr(self._store, name)
