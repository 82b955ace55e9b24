"""What the tests of small patches share: their contracts on each release, alone and with the patch.

Each release is run once for all patches that are for it (`contracts_check.py`), in a process of its own with
that release first on the path.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from contracts_check import RAISED
from repetitions import source_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    #: Says of a patch and a release what the contract found: alone, and with the patch.
    Found = Callable[[str, str], list[str]]

SEED = os.environ.setdefault("OVERLAY_TEST_SEED", str(secrets.randbelow(2**31)))


@dataclass(frozen=True)
class Contracts:
    """The small patches of a project, each with the releases that its tests run on."""

    #: As `repetitions.source_of` has it.
    project: str
    #: By patch, the releases that it is for.
    affected: dict[str, tuple[str, ...]]
    #: By patch, releases that do not need it.
    cured: dict[str, tuple[str, ...]] = field(default_factory=dict)
    #: The releases that are run by day; without any, a patch is run on the first that has its source.
    by_day: tuple[str, ...] = ()

    def finder(self, folder: Callable[[str], Path], findings: Callable[..., dict[str, Any]]) -> Found:
        """Return what says what was found, given what gets a release, and the fixture `findings`."""

        def found(patch: str, version: str) -> list[str]:
            here = [name for name in self.affected if self._is_looked_at(name, version)]
            asked = here if patch in here else [patch]
            return list(findings(folder(version), "contracts_check.py", SEED, *asked)[patch])

        return found

    def with_the_patch(self) -> pytest.MarkDecorator:
        """Run a test for each patch, on each release that it is for."""
        cases = [self._case(patch, version) for patch in self.affected for version in self.affected[patch]]
        return pytest.mark.parametrize(("patch", "version"), cases)

    def xfail_where_needed(self, patch: str) -> pytest.MarkDecorator:
        """Mark the removal test of a patch, which fails on each release that the patch is for."""
        wrong = pytest.mark.xfail(
            strict=True, raises=pytest.fail.Exception, reason=f"once this passes, {patch} has had its day"
        )
        left = self._left(patch)
        needed = [pytest.param(version, marks=[wrong, left]) for version in self.affected[patch]]
        cured = [pytest.param(version, marks=left) for version in self.cured.get(patch, ())]
        return pytest.mark.parametrize("version", [*needed, *cured])

    def _case(self, patch: str, version: str) -> Any:
        return pytest.param(patch, version, marks=self._left(patch))

    def _left(self, patch: str) -> pytest.MarkDecorator:
        """Leave a test to the nightly run on releases that others stand for by day."""
        if not self.by_day:
            return pytest.mark.by_source(patch, version=self.project)
        left = tuple(version for version in self._versions(patch) if version not in self.by_day)
        return pytest.mark.nightly("other releases stand for it", version=left)

    def _versions(self, patch: str) -> tuple[str, ...]:
        return (*self.affected[patch], *self.cured.get(patch, ()))

    def _is_looked_at(self, patch: str, version: str) -> bool:
        """Return whether the patch's tests run on a release, as `_left` has it."""
        versions = self._versions(patch)
        if version not in versions or not os.environ.get("TESTS_ONCE") or version in self.by_day:
            return version in versions
        if self.by_day:
            return False
        earlier = versions[: versions.index(version)]
        mine = source_of((patch,), self.project, version)
        return all(source_of((patch,), self.project, other) != mine for other in earlier)


def holds(said: str) -> None:
    """Fail if upstream alone is wrong; that a contract raised is an error of its own."""
    assert not said.startswith(RAISED), (SEED, said)
    if said:
        pytest.fail(said)
