"""`verl.multi-turn-returns`: REINFORCE++ starts anew at each token that is not the policy's."""

from __future__ import annotations

import secrets

import pytest

from overlay.patches.verl.multi_turn_returns import PATCH
from overlay.patches.verl.multi_turn_returns.contract import wrong
from overlay.testing import applied, assert_form

SEED = str(secrets.randbelow(2**31))


# One contract twice: what fails on upstream alone is what the patch mends.
@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="once this passes, verl.multi-turn-returns has had its day",
)
def test_upstream_alone_credits_every_turn() -> None:
    assert wrong(SEED) == "", SEED


def test_with_the_patch_every_turn_is_credited() -> None:
    with applied(PATCH):
        assert wrong(SEED) == "", SEED


def test_the_patch_is_of_the_form() -> None:
    assert_form(PATCH, __file__)
