"""What tests share of patches whose contract asks ranks of Megatron alone, on one release after another."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from contract_tests import SEED

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from overlay.patch import Patch


@dataclass(frozen=True)
class RankContract:
    """A patch, what its contract finds wrong, and the releases that the patch is for or that are cured."""

    patch: Patch
    #: Takes a seed, a release's folder and whether the patch is there, and returns the cases that are wrong.
    wrong: Callable[..., list[str]]
    affected: tuple[str, ...]
    cured: tuple[str, ...] = ()
    #: What was found, by what was asked.
    _known: dict[str, list[str]] = field(default_factory=dict, compare=False)

    @property
    def marks(self) -> list[pytest.MarkDecorator]:
        """Return the marks of the file: by day, each source is run once."""
        by_source = pytest.mark.by_source(self.patch.id, version="megatron-core")
        return [pytest.mark.distributed, pytest.mark.real, by_source]

    @property
    def on_each(self) -> pytest.MarkDecorator:
        """Run a test on each release that the patch is for."""
        return pytest.mark.parametrize("version", self.affected)

    @property
    def xfail_where_needed(self) -> pytest.MarkDecorator:
        """Mark the removal test, which fails on each release that the patch is for; by day on the last."""
        needed = pytest.mark.xfail(
            strict=True, raises=AssertionError, reason=f"once this passes, {self.patch.id} has had its day"
        )
        left = pytest.mark.nightly("the last release stands for those before it", version=self.affected[:-1])
        marked = (pytest.param(version, marks=[needed, left]) for version in self.affected)
        versions = [*marked, *self.cured]
        return pytest.mark.parametrize("version", versions)

    def off(self, release: Callable[[str], Path], version: str, *given: str, **more: Any) -> list[str]:
        """Return the cases that are wrong on a release; what is given besides goes to the contract.

        The same is asked of the ranks once.
        """
        asked = repr((version, given, sorted(more.items())))
        if asked not in self._known:
            folder = release(f"megatron-core=={version}")
            self._known[asked] = self.wrong(SEED, *given, release=folder, **more)
        return self._known[asked]

    def holds(self, release: Callable[[str], Path], version: str, *given: str, **more: Any) -> None:
        """Fail if there are any; a rank that raises is an error of its own."""
        off = self.off(release, version, *given, **more)
        assert not off, (SEED, off)
