"""Agreement between ranks: real gloo ranks that are alike, that differ, and that run no overlay code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rank_starter import run_ranks
from worksite import ARMED, PATCHED, clean_environment

if TYPE_CHECKING:
    from worksite import Venv

pytest.importorskip("torch")

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory, worksite: Venv) -> Path:
    """Return a folder with another version of the fake upstream, and another source."""
    folder = tmp_path_factory.mktemp("other")
    (folder / "fakeup").mkdir()
    for name in ("__init__.py", "core.py", "version.txt"):
        text = (worksite.site / "fakeup" / name).read_text()
        (folder / "fakeup" / name).write_text(text.replace("factor=2", "factor=3").replace("1.2.0", "1.3.0"))
    return folder


@pytest.fixture(scope="module")
def ranks(worksite: Venv, other: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    armed = clean_environment(**ARMED)
    environs = [armed, {**armed, "PYTHONPATH": str(other)}, clean_environment(), armed]
    command = [str(worksite.python), "-W", "ignore", str(HERE / "rank_agree.py")]
    return run_ranks(command, environs, tmp_path_factory.mktemp("ranks"))


def said(ranks: list[Any], case: str) -> str:
    """Return what the ranks that took part raised, which must be the same on all."""
    (text,) = {rank[case]["said"] for rank in ranks if rank.get(case)}
    assert isinstance(text, str)
    return text


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_ranks_that_are_alike_agree(ranks: list[Any]) -> None:
    assert [ranks[0]["value"], ranks[3]["value"]] == [int(PATCHED)] * 2
    assert said(ranks, "alike") == ""


def test_a_rank_with_other_patches_is_named_on_every_rank_within_seconds(ranks: list[Any]) -> None:
    assert lines(said(ranks, "changed")) == [
        "the ranks do not run the same:",
        "acme/fakeup.scale: revision",
        "rank 0 3",
        "rank 3 absent",
        "megatron.recompute: revision",
        "rank 0 absent",
        "rank 3 1",
    ]
    assert max(rank["changed"]["seconds"] for rank in (ranks[0], ranks[3])) < 10
    assert said(ranks, "changed back") == ""


def test_a_rank_on_which_overlay_is_disabled_is_named(ranks: list[Any]) -> None:
    table = ["the ranks do not run the same:", "overlay", "rank 0 not enabled", "rank 3 enabled"]
    assert lines(said(ranks, "disabled")) == table


def test_a_rank_with_another_source_is_named_with_version_and_file(ranks: list[Any], other: Path) -> None:
    rows = lines(said(ranks, "armed"))
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


def test_a_rank_without_overlay_is_named_by_all_others(ranks: list[Any]) -> None:
    # As far as that goes: the rank itself raises nothing, and somebody has to ask.
    assert [rank["overlay"] for rank in ranks] == [True, True, False, True]
    text = said(ranks, "all")
    assert text.startswith("rank 2 did not take part within 3 s: overlay was not enabled there")
    assert "fakeup version" in text  # the others are compared all the same
    assert max(rank["all"]["seconds"] for rank in ranks if "all" in rank) < 15


def test_the_first_rank_of_a_group_may_be_the_silent_one(ranks: list[Any]) -> None:
    assert said(ranks, "led by a silent rank").startswith("rank 2 did not take part within 3 s")
