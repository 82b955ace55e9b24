"""Agreement between ranks: real gloo ranks that are alike, that differ, and that run no overlay code."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rank_starter import run_ranks
from simulated_ranks import named
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


def test_a_rank_with_other_patches_is_named_on_every_rank(ranks: list[Any]) -> None:
    heading, name, ours, theirs, *_ = lines(said(ranks, "changed"))
    assert (heading, name) == ("the ranks do not run the same:", "acme/fakeup.scale")
    assert re.fullmatch("rank 0 revision 3, code [0-9a-f]{12}, for fakeup 1", ours)
    assert theirs == "rank 3 absent"
    assert said(ranks, "changed back") == ""


def test_a_rank_on_which_overlay_is_disabled_is_named(ranks: list[Any]) -> None:
    heading, name, ours, theirs = lines(said(ranks, "disabled"))
    assert (heading, name, ours) == ("the ranks do not run the same:", "overlay", "rank 0 not enabled")
    assert re.fullmatch("rank 3 [0-9.]+, code [0-9a-f]{12}", theirs)


def test_a_rank_with_another_source_is_named_with_version_and_file(ranks: list[Any], other: Path) -> None:
    heading, name, ours, theirs = lines(said(ranks, "armed"))
    assert (heading, name) == ("the ranks do not run the same:", "acme/fakeup.scale")
    assert ours.startswith("ranks 0,3 revision 3, ")
    assert theirs == f"rank 1 absent (unknown-source: fakeup 1.3.0, {other}/fakeup/core.py)"


def test_a_rank_without_overlay_is_named_by_all_others(ranks: list[Any]) -> None:
    # As far as that goes: the rank itself raises nothing, and somebody has to ask.
    assert [rank["overlay"] for rank in ranks] == [True, True, False, True]
    text = said(ranks, "all")
    # On a machine that is very slow, another one may be waited for in vain as well.
    who, _, why = text.partition(" did not take part within 3 s: ")
    assert 2 in named(who)
    assert why.startswith("overlay was not enabled there")


def test_the_first_rank_of_a_group_may_be_the_silent_one(ranks: list[Any]) -> None:
    assert said(ranks, "led by a silent rank").startswith("rank 2 did not take part within 3 s")


def test_drawn_jobs_of_real_ranks(worksite: Venv, tmp_path: Path) -> None:
    seed = os.environ.get("OVERLAY_TEST_SEED") or str(random.randrange(2**32))
    print(f"OVERLAY_TEST_SEED={seed}")
    command = [str(worksite.python), "-W", "ignore", str(HERE / "rank_drawn.py")]
    environ = clean_environment(**{**ARMED, "OVERLAY": "0", "OVERLAY_TEST_SEED": seed, "OVERLAY_LOG": "off"})
    ranks = run_ranks(command, [environ] * 3, tmp_path)
    jobs = list(zip(*(rank["jobs"] for rank in ranks), strict=True))
    assert len(jobs) == 12
    for number, job in enumerate(jobs):
        fault, *others = {one["fault"] for one in job}
        (text,) = {one["said"] for one in job if one["fault"] != "silent" or not one["odd"]}
        about = (seed, number, job)
        assert not others, about
        odd = {rank for rank, one in enumerate(job) if one["odd"]}
        if not fault:
            assert text == "", about
        elif fault == "silent":
            (one,) = odd
            assert one in named(text.partition(" did not take part within ")[0]), about
        else:
            assert text.startswith("the ranks do not run the same:"), about
            (one,) = odd
            assert re.search(rf"^    rank {one}  ", text, re.MULTILINE), about
