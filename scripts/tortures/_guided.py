"""Started by the fuzzer: lets atheris write files, guided by what of their reader they reach.

python _guided.py lock|recipe FILE [ARGUMENTS OF LIBFUZZER]

The file is what the reader is given each time.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import atheris

if TYPE_CHECKING:
    from collections.abc import Callable

READERS = [
    "overlay.base.toml",
    "overlay.pinning.lockfile",
    "overlay.pinning.lock",
    "overlay.pinning.schema",
    "overlay.suite.recipe",
    "tomllib",
]
with atheris.instrument_imports(include=READERS):
    import tomllib  # noqa: F401 -- the readers read with it

    from overlay.errors import LockError, SuiteError
    from overlay.pinning import lock, lockfile
    from overlay.suite import recipe

from tortures.fuzz import check_recipe  # noqa: E402 -- it imports the readers


def check_lock(found: lock.Lock) -> None:
    """Raise `AssertionError` unless a lock is what its digest says."""
    assert found == lock.with_digest(found)


#: What reads a kind of file, the error with which it refuses one, and what has to hold of the others.
KINDS: dict[str, tuple[Callable[[str], Any], type[Exception], Callable[[Any], None]]] = {
    "lock": (lockfile.read, LockError, check_lock),
    "recipe": (recipe.read, SuiteError, check_recipe),
}
read, refused, check = KINDS[sys.argv.pop(1)]
PATH = Path(sys.argv.pop(1))


def one(data: bytes) -> None:
    """Read one file."""
    PATH.write_bytes(data)
    try:
        found = read(str(PATH))
    except refused:
        return
    check(found)


atheris.Setup(sys.argv, one)
atheris.Fuzz()
