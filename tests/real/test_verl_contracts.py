"""Small patches of verl by their contracts, on upstream alone and with the patch: one process a release."""

from __future__ import annotations

import os
import secrets
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

from overlay.testing import assert_form

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SEED = os.environ.setdefault("OVERLAY_TEST_SEED", str(secrets.randbelow(2**31)))
#: By patch: the releases that it is for, oldest first, and the first that needs it no longer.
PATCHES: dict[str, tuple[tuple[str, ...], str]] = {
    "verl.critic-loss-scale": (("0.7.0", "0.7.1", "0.8.0"), "0.9.0"),
    "verl.distillation-loss-scale": (("0.8.0",), "0.9.0"),
    "verl.fsdp-output-memory": (("0.6.1", "0.7.0", "0.7.1", "0.8.0"), "0.9.0"),
    "verl.weight-transfer-order": (("0.7.1", "0.8.0"), "0.9.0"),
}
CASES = [(patch, version) for patch, (affected, _) in PATCHES.items() for version in affected]

pytestmark = [pytest.mark.real, pytest.mark.by_source(*PATCHES, version="verl")]


@pytest.fixture
def find(
    release: Callable[[str], Path], findings: Callable[..., dict[str, Any]]
) -> Callable[[str, str], dict[str, Any]]:
    """Return the function that says what `contract_check.py` found for a patch on a release."""

    def get(patch: str, version: str) -> dict[str, Any]:
        print(f"seed {SEED}")
        return findings(release(f"verl=={version}"), "contract_check.py", patch, SEED)

    return get


needed = pytest.mark.xfail(
    strict=True,
    reason="once this passes, the patch has had its day there",
    raises=pytest.fail.Exception,
)


@pytest.mark.parametrize(
    ("patch", "version"),
    [
        *(pytest.param(*case, marks=needed) for case in CASES),
        *((patch, fixed) for patch, (_, fixed) in PATCHES.items()),
    ],
)
def test_upstream_alone_is_right(
    find: Callable[[str, str], dict[str, Any]], patch: str, version: str
) -> None:
    found = find(patch, version)
    if found["alone"]:
        pytest.fail(found["alone"])
    assert found["state"] == "skipped"


@pytest.mark.parametrize(("patch", "version"), CASES)
def test_with_the_patch_it_is_right(
    find: Callable[[str, str], dict[str, Any]], patch: str, version: str
) -> None:
    found = find(patch, version)
    assert found["state"] == "applied"
    assert found["patched"] == ""


@pytest.mark.parametrize("patch", PATCHES)
def test_the_patch_is_of_the_form(patch: str) -> None:
    project, name = patch.split(".")
    package = import_module(f"overlay.patches.{project}.{name.replace('-', '_')}")
    assert_form(package.PATCH, __file__)
