"""The installation that the tests of workers share, made once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from worksite import Venv, build_wheel

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel of this checkout."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def worksite(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Venv:
    """Return a venv with overlay from its wheel, a fake upstream, and the pack `acme` that patches it."""
    made = Venv(tmp_path_factory.mktemp("worksite") / "venv")
    made.install(wheel)
    made.add_upstream_and_pack()
    return made
