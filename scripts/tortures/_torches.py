"""Environments with another release of torch in front of what is installed here."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "torches"


def environment(version: str) -> Path:
    """Return the interpreter of an environment with a release of torch, and all else as it is here.

    It is made once, under `.cache`. A build for CUDA takes some gigabytes.

    Raises:
        RuntimeError: The release cannot be installed.

    """
    folder = CACHE / version
    python, whole = folder / "bin" / "python", folder / "whole"
    if not whole.exists():
        venv.create(folder, clear=True, with_pip=True)
        _install(python, version)
        own = subprocess.check_output(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
        ).strip()
        # As a site folder, so that what is installed in editable mode is found too; behind the own one.
        line = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
        (Path(own) / "behind.pth").write_text(line)
        whole.touch()
    return python


def _install(python: Path, version: str) -> None:
    print(f"installing torch {version}", file=sys.stderr, flush=True)
    command = [str(python), "-m", "pip", "install", "--quiet", f"torch=={version}", "numpy"]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise RuntimeError(f"torch {version} cannot be installed: {said[-1] if said else done.returncode}")
