"""Started by the fuzzer: lets atheris write locks, guided by what of the reader they reach."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["overlay._lockfile", "overlay._lock", "tomllib"]):
    import tomllib  # noqa: F401 -- the reader reads with it

    from overlay import _lock, _lockfile
    from overlay.errors import LockError

PATH = Path(tempfile.mkdtemp()) / "x.lock"


def one(data: bytes) -> None:
    """Read one lock."""
    PATH.write_bytes(data)
    try:
        found = _lockfile.read(str(PATH))
    except LockError:
        return
    assert found == _lock.with_digest(found)


atheris.Setup(sys.argv, one)
atheris.Fuzz()
