"""The sources of the upstreams for the tests of this folder, and what a program finds on one."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from checks import SEED, UPSTREAMS
from listed_sources import Findings, Listed, Said, listed
from repetitions import pytest_runtest_setup

from overlay.compat.ranks.warm import Program

__all__ = ["listed", "pytest_runtest_setup"]

#: Until a program is killed.
SECONDS = 800


@pytest.fixture(scope="session")
def findings(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    """Return the function that runs a program with a release first on the path.

    It takes the folder of the release, the program and its arguments, and returns what the program printed as
    JSON in its last line. The program is a file of `checks.UPSTREAMS` by its name, or a text. The same is run
    once, and a failure too is found once and reported by every test.
    """
    known: dict[tuple[Any, ...], dict[str, Any]] = {}

    def get(folder: Path, program: str, *arguments: str) -> dict[str, Any]:
        key = (folder, program, arguments)
        if key not in known:
            file = UPSTREAMS / program
            if "\n" in program:
                file = tmp_path_factory.mktemp("programs") / "program.py"
                file.write_text(program)
            path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
            ours = [name for name in os.environ if name.startswith("OVERLAY") and name != "OVERLAY_TEST_SEED"]
            clean = {name: value for name, value in os.environ.items() if name not in ours}
            known[key] = _printed([str(file), *arguments], {**clean, "PYTHONPATH": path})
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
        for stream in (out, err):
            stream.seek(0)
        said, errors = (stream.read().decode(errors="replace") for stream in (out, err))
    if status:
        return {"error": errors[-4000:] or f"exit status {status}"}
    return dict(json.loads(said.splitlines()[-1]))


@pytest.fixture
def said(name: str, listed: Listed, findings: Findings) -> Said:
    """Return the function that runs a program on a release and returns what it printed."""
    return lambda text: findings(listed(name), text, SEED)
