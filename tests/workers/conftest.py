"""The installation that the tests of workers share, made once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from repetitions import pytest_runtest_setup
from worksite import Venv, build_wheel

__all__ = ["pytest_runtest_setup"]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel of this checkout."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def worksite(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Venv:
    """Return a venv with overlay from its wheel, a fake upstream, and the pack `acme` that patches it."""
    # Linked afterwards: pip would find overlay in the environment that runs the tests, and install nothing.
    made = Venv(tmp_path_factory.mktemp("worksite") / "venv", linked=False)
    made.install(wheel)
    made.link()
    if sys.version_info < (3, 11):
        # A dependency, which pip would have put beside overlay: a pin is read before the links are followed.
        import tomli

        (made.site / "tomli").symlink_to(Path(tomli.__file__).parent)
    made.add_upstream_and_pack()
    return made


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Venv:
    """Return another environment, in which there is no overlay."""
    return Venv(tmp_path_factory.mktemp("other") / "venv", linked=False)
