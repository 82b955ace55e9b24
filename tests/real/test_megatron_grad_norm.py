"""`megatron.grad-norm` on two gloo ranks: Megatron's own optimizers against the gradient of the whole model.

The marks are those of Transformer Engine 2.12 and 2.15, by a stand-in that says where they are from.
"""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

import pytest

from overlay.patches.megatron.grad_norm import PATCH
from overlay.patches.megatron.grad_norm.contract import MARKED, UNMARKED, wrong
from overlay.testing import assert_form

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.real,
    pytest.mark.by_source("megatron.grad-norm", version="megatron-core"),
]

SEED = os.environ.setdefault("OVERLAY_TEST_SEED", str(secrets.randbelow(2**31)))
RELEASES = ("0.12.3", "0.13.1", "0.14.0", "0.15.3", "0.16.1", "0.17.1", "0.18.2", "0.19.2")
on_each = pytest.mark.parametrize("version", RELEASES)


@on_each
def test_each_element_counts_once(version: str, release: Callable[[str], Path]) -> None:
    assert wrong(SEED, UNMARKED, release=release(f"megatron-core=={version}")) == [], SEED


def test_each_element_counts_once_where_experts_are_marked(release: Callable[[str], Path]) -> None:
    assert wrong(SEED, MARKED, release=release("megatron-core==0.16.1")) == [], SEED


@on_each
@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="once this passes, megatron.grad-norm has had its day"
)
def test_upstream_alone_counts_each_element_once(version: str, release: Callable[[str], Path]) -> None:
    assert wrong(SEED, UNMARKED, patched=False, release=release(f"megatron-core=={version}")) == [], SEED


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
    off = wrong(SEED, marks, patched=False, release=release(f"megatron-core=={version}"))
    assert {name.partition(",")[0] for name in off} == kinds, SEED


def test_the_patch_is_of_the_form() -> None:
    assert_form(PATCH, __file__)
