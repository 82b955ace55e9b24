"""`megatron.reduce-contiguous` on two gloo ranks, in every megatron-core: sums of tensors of any strides."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

import pytest

from overlay.patches.megatron.reduce_contiguous import PATCH
from overlay.patches.megatron.reduce_contiguous.contract import wrong
from overlay.testing import assert_form

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.real,
    pytest.mark.by_source("megatron.reduce-contiguous", version="megatron-core"),
]

SEED = os.environ.setdefault("OVERLAY_TEST_SEED", str(secrets.randbelow(2**31)))
AFFECTED = ("0.12.3", "0.13.1", "0.14.0", "0.15.3", "0.16.1", "0.17.1", "0.18.2")
FIXED = ("0.19.2",)

still_wrong = pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="once this passes, megatron.reduce-contiguous has had its day"
)


@pytest.mark.parametrize("version", AFFECTED)
def test_tensors_of_any_strides_are_added_up(version: str, release: Callable[[str], Path]) -> None:
    assert wrong(SEED, release=release(f"megatron-core=={version}")) == [], SEED


@pytest.mark.parametrize("version", [*(pytest.param(one, marks=still_wrong) for one in AFFECTED), *FIXED])
def test_upstream_alone_adds_up_any_strides(version: str, release: Callable[[str], Path]) -> None:
    assert wrong(SEED, patched=False, release=release(f"megatron-core=={version}")) == [], SEED


def test_the_patch_is_of_the_form() -> None:
    assert_form(PATCH, __file__)
