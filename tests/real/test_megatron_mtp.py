"""`megatron.mtp-loss-scale` on two gloo ranks: gradient and report by Megatron's own model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rank_contracts import RankContract

from overlay.patches.megatron.mtp_loss_scale import PATCH
from overlay.patches.megatron.mtp_loss_scale.contract import wrong
from overlay.testing import assert_form

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RANKS = RankContract(PATCH, wrong, affected=("0.14.0", "0.15.3", "0.16.1", "0.17.1", "0.18.2", "0.19.2"))
pytestmark = RANKS.marks


@RANKS.on_each
def test_losses_are_divided_by_the_tokens_of_all_ranks(version: str, release: Callable[[str], Path]) -> None:
    RANKS.holds(release, version)


@RANKS.xfail_where_needed
def test_upstream_alone_divides_by_the_tokens_of_all_ranks(
    version: str, release: Callable[[str], Path]
) -> None:
    RANKS.holds(release, version, patched=False)


def test_the_patch_is_of_the_form() -> None:
    assert_form(PATCH, __file__)
