"""`megatron.vpp-send-before-free` on two stages of Megatron's interleaved schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rank_contracts import RankContract

from overlay.patches.megatron.vpp_send_before_free import PATCH
from overlay.patches.megatron.vpp_send_before_free.contract import wrong
from overlay.testing import assert_form

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RANKS = RankContract(
    PATCH,
    wrong,
    affected=("0.12.3", "0.13.1", "0.14.0", "0.15.3", "0.16.1", "0.17.1"),
    cured=("0.18.2", "0.19.2"),
)
pytestmark = RANKS.marks


@RANKS.on_each
def test_what_is_sent_keeps_its_memory(version: str, release: Callable[[str], Path]) -> None:
    RANKS.holds(release, version)


@RANKS.xfail_where_needed
def test_upstream_alone_frees_what_has_been_sent(version: str, release: Callable[[str], Path]) -> None:
    RANKS.holds(release, version, patched=False)


def test_what_upstream_alone_frees_too_early(release: Callable[[str], Path]) -> None:
    # On the release of the removal test, whose source that of 0.16.1 is.
    assert RANKS.off(release, "0.17.1", patched=False) == [
        "overlapped, training",
        "overlapped from the start, training",
        "overlapped from the start, forward",
    ]


def test_the_patch_is_of_the_form() -> None:
    assert_form(PATCH, __file__)
