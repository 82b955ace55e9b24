"""Agreement between real gloo ranks: alike, different, and without overlay."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ports import free_port
from simulated_ranks import named
from worksite import ARMED, PATCHED, Venv, clean_environment

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
    together = {"WORLD_SIZE": str(len(environs)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    together |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    started = [
        subprocess.Popen(
            command, env={**environ, **together, "RANK": str(rank)}, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True, cwd=tmp_path_factory.mktemp("rank"),
        )
        for rank, environ in enumerate(environs)
    ]  # fmt: skip
    try:
        printed = [process.communicate(timeout=180)[0] for process in started]
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    found = [[line for line in text.splitlines() if line.startswith("{")] for text in printed]
    assert all(found), printed
    return [json.loads(lines[-1]) for lines in found]


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
    assert ours == "rank 0 in force, variant fakeup 1 (fakeup 1.2.0)"
    assert theirs == "rank 3 absent"
    assert said(ranks, "changed back") == ""


def test_a_rank_on_which_overlay_is_disabled_is_named(ranks: list[Any]) -> None:
    heading, name, ours, theirs = lines(said(ranks, "disabled"))
    assert (heading, name, ours) == ("the ranks do not run the same:", "overlay", "rank 0 not enabled")
    # A digest names no copy, and what is to be installed again is one: its node and its folder do.
    assert re.fullmatch(r"rank 3 [0-9.]+, code [0-9a-f]{12} \(on \S+, /.*/overlay\)", theirs)


def test_a_rank_with_another_source_is_named_with_version_and_file(ranks: list[Any], other: Path) -> None:
    heading, name, ours, theirs = lines(said(ranks, "armed"))
    assert (heading, name) == ("the ranks do not run the same:", "acme/fakeup.scale")
    assert ours.startswith("ranks 0,3 in force, variant fakeup 1 (fakeup 1.")
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
