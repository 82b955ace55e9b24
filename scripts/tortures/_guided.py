"""Started by the fuzzer: lets atheris write files, guided by what of their reader they reach.

python _guided.py lock|recipe [ARGUMENTS OF LIBFUZZER]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

READERS = ["overlay._toml", "overlay._lockfile", "overlay._lock", "overlay.suite.recipe", "tomllib"]
with atheris.instrument_imports(include=READERS):
    import tomllib  # noqa: F401 -- the readers read with it

    from overlay import _lock, _lockfile, _toml  # noqa: F401
    from overlay.errors import LockError, SuiteError
    from overlay.suite import recipe

from tortures.fuzz import check_recipe  # noqa: E402 -- it imports the readers

PATH = Path(tempfile.mkdtemp()) / "x.toml"


def lock(data: bytes) -> None:
    """Read one lock."""
    PATH.write_bytes(data)
    try:
        found = _lockfile.read(str(PATH))
    except LockError:
        return
    assert found == _lock.with_digest(found)


def one_recipe(data: bytes) -> None:
    """Read one recipe."""
    PATH.write_bytes(data)
    try:
        found = recipe.read(str(PATH))
    except SuiteError:
        return
    check_recipe(found)


KIND = sys.argv.pop(1)
atheris.Setup(sys.argv, {"lock": lock, "recipe": one_recipe}[KIND])
atheris.Fuzz()
