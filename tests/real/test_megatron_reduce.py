"""`megatron.reduce-contiguous` on two gloo ranks, in every megatron-core: sums of tensors of any strides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rank_contracts import RankContract

from overlay.patches.megatron.reduce_contiguous import PATCH
from overlay.patches.megatron.reduce_contiguous.contract import wrong
from overlay.testing import assert_form

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RANKS = RankContract(
    PATCH,
    wrong,
    affected=("0.12.3", "0.13.1", "0.14.0", "0.15.3", "0.16.1", "0.17.1", "0.18.2"),
    cured=("0.19.2",),
)
pytestmark = RANKS.marks


@RANKS.on_each
def test_tensors_of_any_strides_are_added_up(version: str, release: Callable[[str], Path]) -> None:
    RANKS.holds(release, version)


@RANKS.xfail_where_needed
def test_upstream_alone_adds_up_any_strides(version: str, release: Callable[[str], Path]) -> None:
    RANKS.holds(release, version, patched=False)


def test_the_patch_is_of_the_form() -> None:
    assert_form(PATCH, __file__)
