"""Releases of the upstreams for the tests of this folder."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pytest
from checks import UPSTREAMS
from repetitions import pytest_runtest_setup

from overlay.compat.ranks.warm import Program
from sources import fetch_release, git_sources, releases
from sources.git_sources import FetchError

__all__ = ["pytest_runtest_setup"]

#: Until a program is killed.
SECONDS = 400

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(scope="session")
def release() -> Callable[[str], Path]:
    """Return the function that gets the folder of `name==version`, or skips the test that asks for it."""
    return _getter(fetch_release.fetch, fetch_release.FetchError)


@pytest.fixture(scope="session")
def slime() -> Callable[[str], Path]:
    """Return the function that gets the folder of a revision of slime, or skips the test that asks for it."""
    return _getter(functools.partial(git_sources.fetch, "slime"), FetchError)


@pytest.fixture(scope="session")
def listed() -> Callable[[str], Path]:
    """Return the function that gets the folder of a line of the list, or skips the test that asks for it."""
    lines = {line.name: line for line in releases.read()}
    return _getter(lambda name: releases.fetch(lines[name]), FetchError)


@pytest.fixture(scope="session")
def slime_repository() -> Path:
    """Return a git repository of slime, or skip the test that asks for it."""
    try:
        return git_sources.repository("slime")
    except FetchError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def miles() -> Callable[[str], Path]:
    """Return the function that gets the folder of a commit of miles, or skips the test that asks for it."""
    return _getter(functools.partial(git_sources.fetch, "miles"), FetchError)


@pytest.fixture(scope="session")
def findings() -> Callable[..., dict[str, Any]]:
    """Return the function that runs a program of `checks.UPSTREAMS` with a release first on the path.

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
            known[key] = _printed([str(UPSTREAMS / program), *arguments], {**clean, "PYTHONPATH": path})
        found = known[key]
        assert "error" not in found, found["error"]
        return found

    return get


def _printed(command: list[str], environ: dict[str, str]) -> dict[str, Any]:
    """Return what a program printed as JSON in its last line, or `error`."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        program = Program(command, environ, out, err)
        try:
            status = program.wait(SECONDS)
        except subprocess.TimeoutExpired:
            return {"error": f"no end after {SECONDS} s"}
        finally:
            program.end()
        said, errors = map(_said, (out, err))
    if status:
        return {"error": errors[-4000:] or f"exit status {status}"}
    return dict(json.loads(said.splitlines()[-1]))


def _said(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read().decode(errors="replace")


def _getter(fetch: Callable[[str], Path], failure: type[Exception]) -> Callable[[str], Path]:
    missing: dict[str, str] = {}

    def get(name: str) -> Path:
        if name not in missing:
            try:
                return Path(fetch(name))
            except failure as error:
                # Asked once: without a network each further test would wait for it again.
                missing[name] = str(error)
        pytest.skip(missing[name])

    return get
