"""`verl.resume-lr-schedule`: verl on Megatron saves its learning rate scheduler and does not load it."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys

import pytest

from overlay.patches.verl.resume_lr_schedule import PATCH
from overlay.testing import assert_form

SEED = str(secrets.randbelow(2**31))

#: The contract twice, in a process that is one rank of Megatron: on upstream alone, and with the patch.
PROGRAM = """
import json, sys
from overlay.patches.verl.resume_lr_schedule import PATCH
from overlay.patches.verl.resume_lr_schedule.contract import one_rank, wrong
from overlay.testing import applied

with one_rank():
    alone = wrong(sys.argv[1])
    with applied(PATCH):
        print(json.dumps([alone, wrong(sys.argv[1])]))
"""


@pytest.fixture(scope="module")
def found() -> list[str]:
    """Return what is wrong without the patch, and with it."""
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, SEED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    said: list[str] = json.loads(done.stdout.splitlines()[-1])
    return said


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="once this passes, verl.resume-lr-schedule has had its day",
)
def test_upstream_alone_goes_on(found: list[str]) -> None:
    assert found[0] == "", SEED


def test_with_the_patch_a_schedule_goes_on(found: list[str]) -> None:
    assert found[1] == "", SEED


def test_the_patch_is_of_the_form() -> None:
    assert_form(PATCH, __file__)
