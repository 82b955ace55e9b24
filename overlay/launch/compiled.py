"""Whether overlay has compiled files: without them each process compiles what it imports of it."""

from __future__ import annotations

import os
import subprocess
import sys

from overlay.runtime import engine
from overlay.source.registry import COMPAT, PACK

_PATIENCE = 60.0
_START = (
    "import time; at = time.process_time(); import overlay; overlay.enable(); print(time.process_time() - at)"
)


def remark() -> str:
    """Return a sentence on compiled files that are missing and what that costs, empty if they are there."""
    # This process has imported the engine: what could be written has been.
    file, cached = engine.__spec__.origin or "", engine.__spec__.cached or ""
    if not file.endswith(".py") or os.path.exists(cached):
        return ""
    why = "PYTHONDONTWRITEBYTECODE is set" if sys.dont_write_bytecode else f"{cached} cannot be written"
    folders = " ".join(_folders())
    cost = _cost()
    return (
        f"overlay has no compiled files, as {why}: each process compiles what it imports of overlay{cost}; "
        f"`{os.path.basename(sys.executable)} -m compileall -q {folders}` writes them, once"
    )


def _cost() -> str:
    """Return what a start takes without compiled files and with them, as the rest of a sentence."""
    from tempfile import TemporaryDirectory

    environ = {name: value for name, value in os.environ.items() if not name.startswith("OVERLAY")}
    with TemporaryDirectory() as folder:
        kept = {name: value for name, value in environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        kept["PYTHONPYCACHEPREFIX"] = folder
        without = min(_start(environ), _start(environ))
        _start(kept)  # which compiles
        found = min(_start(kept), _start(kept))
    if not 0.0 < found < without < _PATIENCE:
        return ""
    return f" (enable() takes {without * 1e3:.0f} ms here, and {found * 1e3:.0f} ms with them)"


def _start(environ: dict[str, str]) -> float:
    """Return the processor time of `enable()` in a fresh interpreter, in seconds."""
    done = subprocess.run(
        [sys.executable, "-c", _START],
        env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=_PATIENCE,
        check=False,
    )  # fmt: skip
    try:
        return float(done.stdout)
    except ValueError:
        return 0.0


def _folders() -> list[str]:
    """Return the folders that overlay lies in; in a checkout that is more than one."""
    from overlay.source.source import InstalledTree

    tree = InstalledTree()
    found: list[str] = []
    for package in ("overlay", COMPAT, PACK):
        found += [place for place in tree.folders(package) if not any(map(place.startswith, found))]
    return found
