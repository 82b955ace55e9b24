"""`megatron.moe-aux-scale` on two gloo ranks: the gradient of a router through Megatron's own schedule."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

import pytest

import overlay
from checks import UPSTREAMS
from overlay.compat.ranks.findings import megatron_ranks
from overlay.patches.megatron.moe_aux_scale import PATCH
from overlay.patches.megatron.moe_aux_scale.contract import wrong
from overlay.testing import assert_form

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.real,
    pytest.mark.by_source("megatron.moe-aux-scale", version="megatron-core"),
]

SEED = os.environ.setdefault("OVERLAY_TEST_SEED", str(secrets.randbelow(2**31)))
AFFECTED = ("0.12.3", "0.13.1", "0.14.0", "0.15.3", "0.16.1", "0.17.1", "0.18.2")
FIXED = ("0.19.2",)

still_wrong = pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="once this passes, megatron.moe-aux-scale has had its day"
)


@pytest.mark.parametrize("version", AFFECTED)
def test_losses_weigh_as_in_one_process(version: str, release: Callable[[str], Path]) -> None:
    assert wrong(SEED, release=release(f"megatron-core=={version}")) == [], SEED


@pytest.mark.parametrize("version", [*(pytest.param(one, marks=still_wrong) for one in AFFECTED), *FIXED])
def test_upstream_alone_weighs_losses_as_one_process(version: str, release: Callable[[str], Path]) -> None:
    assert wrong(SEED, patched=False, release=release(f"megatron-core=={version}")) == [], SEED


@pytest.mark.parametrize("version", ["0.15.3", "0.16.1"])
def test_losses_weigh_as_in_one_process_on_four_ranks(version: str, release: Callable[[str], Path]) -> None:
    assert wrong(SEED, release=release(f"megatron-core=={version}"), ranks=4) == [], SEED


def test_a_padding_mask_makes_the_count_of_a_rank_that_of_all(release: Callable[[str], Path]) -> None:
    # Why losses with a mask are left as they are.
    folder = release("megatron-core==0.16.1")
    (ranks,) = megatron_ranks(SEED, UPSTREAMS / "moe_mask_cases.py", "", release=folder).values()
    assert [rank["counted"] for rank in ranks] == [sum(rank["tokens"] for rank in ranks)] * 2


def test_it_is_selected_by_its_name_alone(release: Callable[[str], Path]) -> None:
    folder = str(release("megatron-core==0.16.1"))
    found = {
        terms: {item.patch: item.verdict for item in overlay.plan(terms, folder).verdicts}[PATCH.id]
        for terms in ("all", PATCH.id)
    }
    assert found == {"all": "not-selected", PATCH.id: "apply"}


def test_the_patch_is_of_the_form() -> None:
    assert_form(PATCH, __file__)
