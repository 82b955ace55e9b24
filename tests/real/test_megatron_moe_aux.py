"""`megatron.moe-aux-scale` on two gloo ranks: gradient and report of a router, by Megatron's own schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from contract_tests import SEED
from rank_contracts import RankContract

import overlay
from checks import UPSTREAMS
from overlay.compat.ranks.findings import megatron_ranks
from overlay.patches.megatron.moe_aux_scale import PATCH
from overlay.patches.megatron.moe_aux_scale.contract import wrong
from overlay.testing import assert_form

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RANKS = RankContract(
    PATCH, wrong, affected=("0.12.3", "0.13.1", "0.14.0", "0.15.3", "0.16.1", "0.17.1", "0.18.2", "0.19.2")
)
pytestmark = RANKS.marks


@RANKS.on_each
def test_losses_weigh_as_in_one_process(version: str, release: Callable[[str], Path]) -> None:
    RANKS.holds(release, version)


@RANKS.xfail_where_needed
def test_upstream_alone_weighs_losses_as_one_process(version: str, release: Callable[[str], Path]) -> None:
    RANKS.holds(release, version, patched=False)


@pytest.mark.nightly(
    "two ranks stand for four, and the last release for those before", version=("0.15.3", "0.16.1")
)
@pytest.mark.parametrize("version", ["0.15.3", "0.16.1", "0.19.2"])
def test_losses_weigh_as_in_one_process_on_four_ranks(version: str, release: Callable[[str], Path]) -> None:
    RANKS.holds(release, version, ranks=4)


def test_a_padding_mask_makes_the_count_of_a_rank_that_of_all(release: Callable[[str], Path]) -> None:
    # What is left to scale with a mask follows from it.
    folder = release("megatron-core==0.16.1")
    (ranks,) = megatron_ranks(SEED, UPSTREAMS / "moe_mask_cases.py", "", release=folder).values()
    assert [rank["counted"] for rank in ranks] == [sum(rank["tokens"] for rank in ranks)] * 2


def test_what_upstream_alone_weighs_wrongly_since_0_19(release: Callable[[str], Path]) -> None:
    """The last of each is no gradient, but a report, which the patch leaves as it is."""
    assert RANKS.off(release, "0.19.2", patched=False, left=True) == [
        f"{layout}, {kind}, per token, padded{said}"
        for layout in ("tp", "cp")
        for kind, said in (("aux_loss", ""), ("seq_aux_loss", ""), ("z_loss", ", as reported"))
    ]


@pytest.mark.parametrize(("version", "masked"), [("0.15.3", 1), ("0.16.1", 1), ("0.19.2", 2)])
def test_what_upstream_and_the_patch_leave_of_global_aux_loss(
    version: str, masked: int, release: Callable[[str], Path]
) -> None:
    """What docs/known-issues.md says of it: with a mask, and over data parallel ranks."""
    folder = release(f"megatron-core=={version}")
    found = megatron_ranks(SEED, UPSTREAMS / "moe_global_cases.py", PATCH.id, release=folder)
    for name, ranks in found.items():
        layout = name.partition(",")[0]
        right = 1 / 2 if layout in ("dp", "ep") else 1
        if name.endswith("padded"):
            right = masked if layout in ("tp", "cp") else 1
        for rank in ranks:
            assert rank["scale"] == pytest.approx(right, rel=1e-4), (SEED, name)
            assert rank["reported"] < 1e-4, (SEED, name)


def test_it_is_selected_by_its_name_alone(release: Callable[[str], Path]) -> None:
    folder = str(release("megatron-core==0.16.1"))
    found = {
        terms: {item.patch: item.verdict for item in overlay.plan(terms, folder).verdicts}[PATCH.id]
        for terms in ("all", PATCH.id)
    }
    assert found == {"all": "not-selected", PATCH.id: "apply"}


def test_the_patch_is_of_the_form() -> None:
    assert_form(PATCH, __file__)
