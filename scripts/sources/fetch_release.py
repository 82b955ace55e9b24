"""Fetch releases of an upstream into `.cache/releases/<name>-<version>/` without installing them.

pip finds the wheel in whatever index it is set up for; the wheel is unpacked here, because pip would refuse
to install one that asks for a newer Python than this, which matters little to a pure Python package. A
release that is already there is not fetched again, so that a second run needs no network.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from sources.git_sources import CACHE, FetchError, whole

__all__ = ["CACHE", "FetchError", "fetch"]

_PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([0-9][A-Za-z0-9.!+_-]*)")

#: How pip is asked, in this order. A compiled helper for another Python does no harm: nothing here needs it.
_ATTEMPTS: tuple[tuple[str, ...], ...] = (
    (),
    *(
        (
            "--ignore-requires-python",
            f"--python-version={version}",
            "--platform=manylinux_2_28_x86_64",
            "--platform=manylinux_2_24_x86_64",
            "--platform=manylinux2014_x86_64",
            "--platform=any",
        )
        for version in ("3.12", "3.13", "3.11", "3.10")
    ),
)


def fetch(requirement: str, cache: Path = CACHE, *, timeout_s: float = 300.0) -> Path:
    """Return the folder of `name==version`, fetched first if it is not there yet.

    Raises:
        FetchError: the requirement is not of the form `name==version`, or it is not there and pip does not
            find it, or cannot reach an index.
    """
    match = _PIN.fullmatch(requirement.strip())
    if match is None:
        msg = f"{requirement!r}: expected NAME==VERSION, such as megatron-core==0.17.1"
        raise FetchError(msg)
    name = re.sub(r"[-_.]+", "-", match[1]).lower()

    def fill(into: Path) -> None:
        with zipfile.ZipFile(_download(requirement, into.with_name("wheel"), timeout_s)) as archive:
            archive.extractall(into)

    return whole(cache / f"{name}-{match[2]}", fill)


def _download(requirement: str, into: Path, timeout_s: float) -> Path:
    complaints: list[str] = []
    for options in _ATTEMPTS:
        shutil.rmtree(into, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--dest", str(into), *options, requirement]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
                timeout=timeout_s,
                env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
            )
        except subprocess.TimeoutExpired:
            complaints.append(f"pip did not answer within {timeout_s:g} s")
            break
        wheels = sorted(into.glob("*.whl"))
        if done.returncode == 0 and len(wheels) == 1:
            return wheels[0]
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        # pip lists every version that it knows of, hundreds of them for a project with nightlies.
        said = re.sub(r"\(from versions: .*?\)", "", errors[-1]) if errors else done.stderr.strip()[-300:]
        complaints.append(said or f"exit status {done.returncode}")
    msg = f"cannot fetch {requirement}: " + "; ".join(dict.fromkeys(complaints))
    raise FetchError(msg)
