"""`verl.seeded-validation`: verl seeds NumPy's global generator at every validation."""

from __future__ import annotations

import secrets

import pytest

from overlay.patches.verl.seeded_validation import PATCH
from overlay.patches.verl.seeded_validation.contract import wrong
from overlay.testing import applied, assert_form

SEED = str(secrets.randbelow(2**31))


# One contract twice: what fails on upstream alone is what the patch mends.
@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="once this passes, verl.seeded-validation has had its day",
)
def test_upstream_alone_leaves_the_generator_alone() -> None:
    assert wrong(SEED) == "", SEED


def test_with_the_patch_the_metrics_are_the_same_and_the_generator_is_left_alone() -> None:
    with applied(PATCH):
        assert wrong(SEED) == "", SEED


def test_the_patch_is_of_the_form() -> None:
    assert_form(PATCH)
