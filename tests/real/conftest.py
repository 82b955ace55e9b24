"""Releases of the upstreams for the tests of this folder."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


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


@pytest.fixture(scope="session")
def findings() -> Callable[..., dict[str, Any]]:
    """Return the function that runs a program of this folder with a release first on the path.

    It takes the folder of the release, the program and its arguments, and returns what the program printed as
    JSON in its last line. The same is run once, and a failure too is found once and reported by every test.
    """
    known: dict[tuple[Any, ...], dict[str, Any]] = {}

    def get(folder: Path, program: str, *arguments: str) -> dict[str, Any]:
        key = (folder, program, arguments)
        if key not in known:
            path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
            ours = [name for name in os.environ if name.startswith("OVERLAY") and name != "OVERLAY_TEST_SEED"]
            clean = {name: value for name, value in os.environ.items() if name not in ours}
            known[key] = _printed([str(HERE / program), *arguments], {**clean, "PYTHONPATH": path})
        found = known[key]
        assert "error" not in found, found["error"]
        return found

    return get


def _printed(command: list[str], environ: dict[str, str]) -> dict[str, Any]:
    """Return what a program printed as JSON in its last line, or `error`."""
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", *command],
            env=environ, capture_output=True, text=True, timeout=400, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        return {"error": f"no end after {error.timeout} s"}
    if done.returncode:
        return {"error": done.stderr[-4000:] or f"exit status {done.returncode}"}
    return dict(json.loads(done.stdout.splitlines()[-1]))


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
