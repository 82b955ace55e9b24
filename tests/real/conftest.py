"""Releases of the upstreams for the tests of this folder."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]


def _script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def release() -> Callable[[str], Path]:
    """Return the function that gets the folder of `name==version`, or skips the test that asks for it."""
    return _getter(_script("fetch_release"))


@pytest.fixture(scope="session")
def slime() -> Callable[[str], Path]:
    """Return the function that gets the folder of a revision of slime, or skips the test that asks for it."""
    return _getter(_script("fetch_slime"))


def _getter(script: Any) -> Callable[[str], Path]:
    missing: dict[str, str] = {}

    def get(name: str) -> Path:
        if name not in missing:
            try:
                return Path(script.fetch(name))
            except script.FetchError as error:
                # Asked once: without a network each further test would wait for it again.
                missing[name] = str(error)
        pytest.skip(missing[name])

    return get
