"""Programs that look at an upstream in a process of their own, with a release of it first on the path."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def found(program: Path, *arguments: str, release: Path | None = None, **variables: str) -> Any:
    """Return what a program prints last, which is JSON.

    Args:
        program: Its file.
        arguments: What it is given.
        release: The folder of a release.
        variables: Of its environment, beside those of this process.

    Raises:
        RuntimeError: It failed. With what it said.

    """
    path = os.pathsep.join(filter(None, [str(release or ""), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program), *arguments],
        env={**os.environ, "PYTHONPATH": path, **variables}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        where = f" on {release.name}" if release else ""
        raise RuntimeError(f"{program.name}{where}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])
