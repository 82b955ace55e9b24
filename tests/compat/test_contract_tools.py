"""What contracts share: a patch that is never reached proves nothing, and no wrong case is passed over."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from command_line import python

from overlay.compat.contracts.rank_cases import RankCases, within
from overlay.compat.ranks import findings
from overlay.model.settings import ALONE, PROVE
from overlay.source.registry import PACK

NEVER_REACHED = """
from overlay.testing import with_patches

print("found:", with_patches(lambda seed: seed, "megatron.recompute")("17"))
"""
ON_RANKS = """
import os

from overlay.compat.contracts.forked import wrong_on_ranks

def look(dies=False):
    import torch
    import torch.distributed as dist

    total = torch.ones(1)
    dist.all_reduce(total)
    if dist.get_rank() == 1:
        if dies:
            os._exit(1)
        yield f"of {int(total)} ranks"
        yield "the second"

print(wrong_on_ranks(look, "json", ranks=3))
print(wrong_on_ranks(lambda: iter(()), ranks=2) == "")
print(wrong_on_ranks(lambda: look(dies=True)))
"""


def test_a_patch_that_is_never_reached_proves_nothing_but_on_upstream_alone() -> None:
    done = python("-W", "ignore", "-c", NEVER_REACHED)
    assert done.returncode == 1
    assert "PatchError: megatron.recompute is waiting" in done.stderr
    assert python("-W", "ignore", "-c", NEVER_REACHED, seconds=120, **{PROVE: ALONE}).stdout == "found: 17\n"


def test_what_one_forked_rank_finds_is_found() -> None:
    pytest.importorskip("torch")
    assert python("-W", "ignore", "-c", ON_RANKS).stdout.splitlines() == [
        "of 3 ranks; the second",
        "True",
        "1 of 2 ranks ended well",
    ]


def test_what_is_no_error_below_the_tolerance_is_off() -> None:
    off = within(1e-3)
    assert off({"gradient": 1e-4, "loss": 0.0}) == []
    for figure in (1e-3, math.inf, math.nan):
        assert off({"gradient": 0.0, "loss": figure}) == [""]


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Let ranks find something, and return what they were asked."""
    asked: list[Any] = []

    def megatron_ranks(*given: Any, **how: Any) -> dict[str, list[Any]]:
        asked.append((given, how))
        return {
            "right": [{"error": 0.0}, {"error": 0.1}],
            "wrong on one": [{"error": 0.0}, {"error": 2.0}],
            "as it is": [{"error": 3.0}, {"error": 3.0}],
        }

    monkeypatch.setattr(findings, "megatron_ranks", megatron_ranks)
    return asked


def test_a_case_is_wrong_if_it_is_on_any_rank_and_what_is_left_where_it_is_asked_for(
    ranks: list[Any],
) -> None:
    cases = RankCases("megatron.some-patch", "it is off", within(1.0), left="as it is")
    assert cases.wrong("5") == ["wrong on one"]
    assert cases.wrong("5", left=True) == ["wrong on one", "as it is"]
    assert cases.check("5") == "it is off: wrong on one"
    assert RankCases("megatron.some-patch", "it is off", within(9.0)).check("5") == ""
    said = RankCases("up.it", "off", lambda row: [", much"] if row["error"] > 1 else [])
    assert said.wrong("5") == ["wrong on one, much", "as it is, much"]


def test_ranks_run_the_cases_of_the_patch_with_it_or_without(ranks: list[Any], tmp_path: Path) -> None:
    cases = RankCases("megatron.some-patch", "off", within(1.0), te="2.15.0")
    cases.wrong("5")
    cases.wrong("5", "2.12.0", patched=False, release=tmp_path, ranks=4)
    module = f"{PACK}.megatron.some_patch.contract"
    assert ranks == [
        (("5", module, "megatron.some-patch"), {"release": None, "te": "2.15.0", "ranks": 2}),
        (("5", module, ""), {"release": tmp_path, "te": "2.12.0", "ranks": 4}),
    ]
