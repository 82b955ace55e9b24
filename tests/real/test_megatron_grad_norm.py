"""`megatron.grad-norm` on two and four gloo ranks: Megatron's own optimizers against the whole model.

The marks are those of Transformer Engine 2.12 and 2.15, by a stand-in that says where they are from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from rank_contracts import RankContract

from overlay.patches.megatron.grad_norm import PATCH
from overlay.patches.megatron.grad_norm.contract import MARKED, UNMARKED, wrong
from overlay.testing import assert_form

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RANKS = RankContract(
    PATCH, wrong, affected=("0.12.3", "0.13.1", "0.14.0", "0.15.3", "0.16.1", "0.17.1", "0.18.2", "0.19.2")
)
pytestmark = RANKS.marks


@RANKS.on_each
def test_each_element_counts_once(version: str, release: Callable[[str], Path]) -> None:
    RANKS.holds(release, version, UNMARKED)


def test_each_element_counts_once_where_experts_are_marked(release: Callable[[str], Path]) -> None:
    RANKS.holds(release, "0.16.1", MARKED)


@pytest.mark.nightly("two ranks stand for four", marks=(MARKED,))
@pytest.mark.parametrize("marks", [UNMARKED, MARKED])
def test_each_element_counts_once_on_four_ranks(marks: str, release: Callable[[str], Path]) -> None:
    RANKS.holds(release, "0.16.1", marks, ranks=4)


@RANKS.xfail_where_needed
def test_upstream_alone_counts_each_element_once(version: str, release: Callable[[str], Path]) -> None:
    RANKS.holds(release, version, UNMARKED, patched=False)


@pytest.mark.parametrize(
    ("version", "marks", "kinds"),
    [
        ("0.16.1", MARKED, {"undivided", "sinks", "biased experts", "all"}),
        ("0.16.1", UNMARKED, {"undivided", "sinks", "experts", "biased experts", "all"}),
        ("0.18.2", UNMARKED, {"sinks", "experts", "biased experts", "all"}),
        ("0.19.2", UNMARKED, {"sinks", "all"}),
    ],
)
def test_what_upstream_alone_counts_wrongly(
    version: str, marks: str, kinds: set[str], release: Callable[[str], Path]
) -> None:
    off = RANKS.off(release, version, marks, patched=False)
    assert {name.partition(",")[0] for name in off} == kinds


def test_the_patch_is_of_the_form() -> None:
    assert_form(PATCH, __file__)
