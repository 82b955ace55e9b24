"""Agreement between ranks: real gloo ranks that are alike, that differ, and that run no overlay code."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rank_starter import run_ranks
from worksite import ARMED, PATCHED, clean_environment

from overlay.errors import AgreementError, OverlayError
from overlay.pinning import agreement

if TYPE_CHECKING:
    from worksite import Venv

pytest.importorskip("torch")
from overlay.compat.comparison import Talk

HERE = Path(__file__).parent
WORLD = 8


@pytest.fixture(scope="session")
def alike(worksite: Venv, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    command = [str(worksite.python), "-W", "ignore", str(HERE / "rank_agree.py"), "alike"]
    environs = [clean_environment(**ARMED)] * WORLD
    return run_ranks(command, environs, tmp_path_factory.mktemp("alike"))


@pytest.fixture(scope="session")
def different(worksite: Venv, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    other = tmp_path_factory.mktemp("other")
    (other / "fakeup").mkdir()
    for name in ("__init__.py", "core.py", "version.txt"):
        text = (worksite.site / "fakeup" / name).read_text()
        (other / "fakeup" / name).write_text(text.replace("factor=2", "factor=3").replace("1.2.0", "1.3.0"))
    armed = clean_environment(**ARMED)
    environs = [armed, {**armed, "PYTHONPATH": str(other)}, clean_environment(), armed]
    command = [str(worksite.python), "-W", "ignore", str(HERE / "rank_agree.py"), "different"]
    return [*run_ranks(command, environs, tmp_path_factory.mktemp("different")), str(other)]


def said(ranks: list[Any], case: str) -> str:
    """Return what the ranks that took part raised, which must be the same on all."""
    (text,) = {rank[case]["said"] for rank in ranks if rank.get(case)}
    assert isinstance(text, str)
    return text


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_ranks_that_are_alike_agree(alike: list[Any]) -> None:
    assert [rank["value"] for rank in alike] == [int(PATCHED)] * WORLD
    assert said(alike, "first") == ""
    assert {turn["said"] for rank in alike for turn in rank["turns"]} == {""}


def test_a_group_can_be_compared_alone(alike: list[Any]) -> None:
    assert said(alike, "some") == ""


def test_a_rank_with_other_patches_is_named_on_every_rank_within_seconds(alike: list[Any]) -> None:
    assert lines(said(alike, "changed")) == [
        "the ranks do not run the same:",
        "acme/fakeup.scale: revision",
        "ranks 0-4,6-7 3",
        "rank 5 absent",
        "megatron.recompute: revision",
        "ranks 0-4,6-7 absent",
        "rank 5 1",
    ]
    assert max(rank["changed"]["seconds"] for rank in alike) < 10
    assert said(alike, "changed back") == ""


def test_a_rank_on_which_overlay_is_disabled_is_named(alike: list[Any]) -> None:
    table = ["the ranks do not run the same:", "overlay", "rank 0 not enabled", "ranks 1-7 enabled"]
    assert lines(said(alike, "disabled")) == table


def test_a_rank_with_another_source_is_named_with_version_and_file(different: list[Any]) -> None:
    *ranks, other = different
    rows = lines(said([ranks[0], ranks[1], ranks[3]], "armed"))
    place = rows.index("acme/fakeup.scale: fakeup version")
    assert rows[place + 1 : place + 3] == ["ranks 0,3 1.2.0", "rank 1 1.3.0"]
    place = rows.index("acme/fakeup.scale: fakeup source of fakeup.core:scale")
    assert rows[place + 1].startswith("ranks 0,3 ")
    assert rows[place + 1].endswith("site-packages/fakeup/core.py")
    assert rows[place + 2].startswith("rank 1 ")
    assert rows[place + 2].endswith(f"{other}/fakeup/core.py")
    place = rows.index("acme/fakeup.scale: verdict")
    assert rows[place + 1 : place + 3] == ["ranks 0,3 apply", "rank 1 unsupported"]
    assert "acme/fakeup.scale: fakeup source" not in rows


def test_a_rank_without_overlay_is_named_by_all_others(different: list[Any]) -> None:
    # As far as that goes: the rank itself raises nothing, and somebody has to ask.
    ranks = different[:-1]
    assert [rank["overlay"] for rank in ranks] == [True, True, False, True]
    text = said(ranks, "all")
    assert text.startswith("rank 2 did not take part within 3 s: overlay was not enabled there")
    assert "fakeup version" in text  # the others are compared all the same
    assert max(rank["all"]["seconds"] for rank in ranks if "all" in rank) < 15


def test_the_first_rank_of_a_group_may_be_the_silent_one(different: list[Any]) -> None:
    assert said([different[3]], "led by a silent rank").startswith("rank 2 did not take part within 3 s")


# -- without processes -------------------------------------------------------------------------------


def simulated(world: int, odd: dict[int, dict[str, str]], silent: tuple[int, ...] = ()) -> list[str]:
    """Compare ranks that are threads, and return what each raised."""
    from torch.distributed import HashStore  # type: ignore[attr-defined]

    store, found = HashStore(), ["did not come back"] * world

    def rank(me: int) -> None:
        try:
            talk = Talk(store, "test", range(world))
            facts = {"overlay": "enabled", "a: content": "1", **odd.get(me, {})}
            files = {"up.core": f"/rank{me}/up/core.py"}
            found[me] = talk.lead(facts, files, 1.0) if me == 0 else talk.follow(me, facts, files, 1.0)
        except AgreementError as error:
            found[me] = f"raised {error}"

    threads = [threading.Thread(target=rank, args=(me,)) for me in range(world) if me not in silent]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


def test_many_ranks_agree() -> None:
    assert simulated(64, {}) == [""] * 64


def test_three_kinds_of_ranks() -> None:
    odd = {5: {"a: up source of up.core:f": "x"}, 9: {"a: content": "2"}}
    found = simulated(64, odd)
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


def test_silent_ranks_are_all_named() -> None:
    found = simulated(16, {}, silent=(3, 4, 9))
    assert {text for rank, text in enumerate(found) if rank not in (3, 4, 9)} == {found[0]}
    assert found[0].startswith("ranks 3-4,9 did not take part within 1 s")


def test_spans() -> None:
    assert agreement.spans([0]) == "rank 0"
    assert agreement.spans([4, 2, 3, 9]) == "ranks 2-4,9"


def test_without_a_process_group_there_is_nothing_to_compare() -> None:
    import overlay

    with pytest.raises(OverlayError, match="there is no process group"):
        overlay.agree()


# -- one after the other, through one store ----------------------------------------------------------

FACTS = {"overlay": "enabled"}


def at_once(store: Any, ranks: dict[int, dict[str, str]], timeout: float = 20.0) -> dict[int, str]:
    """Compare ranks that are threads and share nothing but a store, and return what each says."""
    found: dict[int, str] = {}

    def take_part(me: int, facts: dict[str, str]) -> None:
        talk = Talk(store, "test", [0, 1, 2])
        found[me] = talk.lead(facts, {}, timeout) if me == 0 else talk.follow(me, facts, {}, timeout)

    threads = [threading.Thread(target=take_part, args=rank) for rank in ranks.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


@pytest.fixture
def store() -> Any:
    from torch.distributed import HashStore  # type: ignore[attr-defined]

    return HashStore()


ALIKE = dict.fromkeys(range(3), FACTS)


def test_what_differed_before_differs_no_more(store: Any) -> None:
    # Other processes, in the same places: what the earlier ones said is not taken for their answer.
    for _ in range(3):
        assert set(at_once(store, ALIKE).values()) == {""}
        (said,) = set(at_once(store, {**ALIKE, 2: {"overlay": "enabled", "a": "1"}}).values())
        assert "rank 2" in said


def test_a_silent_rank_is_silent_once(store: Any) -> None:
    for silent in range(3):
        there = {rank: FACTS for rank in ALIKE if rank != silent}
        (said,) = set(at_once(store, there, 0.3).values())
        assert said.startswith(f"rank {silent} did not take part within 0.3 s: ")
        assert set(at_once(store, ALIKE).values()) == {""}


def test_nobody_waits_for_a_first_rank_that_has_ended_when_another_comes(store: Any) -> None:
    Talk(store, "test", [0, 1, 2])._call()  # and dies
    assert set(at_once(store, ALIKE).values()) == {""}


def test_a_first_rank_that_asks_and_ends_is_named(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlay.compat.comparison.SLACK", 0.2)
    first = Talk(store, "test", [0, 1, 2])
    first._answer(first._call(), 0, FACTS, {})
    said = at_once(store, {1: FACTS, 2: FACTS}, 0.3)
    assert set(said.values()) == {
        "rank 0 asked, and has not said what came of it within 0.5 s: it hangs or has ended\n"
    }


def test_all_that_are_silent_are_named_where_the_first_is_among_them(store: Any) -> None:
    said = at_once(store, {2: FACTS}, 0.3)[2]
    assert said.startswith("ranks 0-1 did not take part within 0.3 s: ")


def test_a_first_rank_that_comes_when_the_others_have_given_up_says_so(store: Any) -> None:
    said = at_once(store, {1: FACTS, 2: FACTS}, 0.3)
    assert all(text.startswith("rank 0 did not take part within 0.3 s: ") for text in said.values())
    assert at_once(store, {0: FACTS}, 0.3) == {
        0: "ranks 1-2 had given up waiting for rank 0, which came later\n"
    }
    assert set(at_once(store, ALIKE).values()) == {""}


def test_a_rank_that_comes_when_the_others_have_given_up_is_told_what_they_said(store: Any) -> None:
    (earlier,) = set(at_once(store, {0: FACTS, 1: FACTS}, 0.3).values())
    said = at_once(store, {2: FACTS}, 0.3)[2]
    assert f"a comparison had ended before rank 2 came, and said: {earlier}" in said
    assert set(at_once(store, ALIKE).values()) == {""}
