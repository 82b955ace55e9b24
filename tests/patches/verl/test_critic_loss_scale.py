"""`verl.critic-loss-scale`: TODO: what upstream gets wrong."""

from __future__ import annotations

import secrets

import pytest

from overlay.patches.verl.critic_loss_scale import PATCH
from overlay.patches.verl.critic_loss_scale.contract import wrong
from overlay.testing import applied, assert_form

SEED = str(secrets.randbelow(2**31))


# One contract twice: what fails on upstream alone is what the patch mends.
@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="once this passes, verl.critic-loss-scale has had its day",
)
def test_upstream_alone_is_right() -> None:
    assert wrong(SEED) == "", SEED


def test_with_the_patch_it_is_right() -> None:
    with applied(PATCH):
        assert wrong(SEED) == "", SEED


def test_the_patch_is_of_the_form() -> None:
    assert_form(PATCH, __file__)
