"""What is known of sources before they are parsed: answers that come with a package, by the text they are of.

Such a table is written where a package is made, of the releases that it knows (`scripts/records/known.py`).
It is asked with the digest of the whole text, so a byte that differs is a source that nothing is known of. It
says of which code its answers are: those of other code are not taken. What is not in a table is parsed.
"""

from __future__ import annotations

import os
import sys

from overlay.base.record import TYPE_CHECKING
from overlay.reading.questions import CODE, OF_PYTHON

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

#: The file of a package.
NAME = "_known.json"
#: Hexadecimal digits of the digest of a text.
LENGTH = 32
#: What a table answers to what it does not know.
UNKNOWN = object()
#: What comes of a table that cannot be read, or is none. Then sources are parsed.
BROKEN = (ImportError, OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError)

_packages: list[str] = []
_tables: dict[str, Table | None] = {}
_code: list[str] = []


class Table:
    """The answers of one package."""

    def __init__(self, data: bytes, code: str) -> None:
        """Read a table. Raises `ValueError`, `TypeError` or `LookupError` if it is none for this code."""
        import json

        seal, _, body = data.partition(b"\n")
        if seal.decode() != digest_of(body):
            raise ValueError("it is not as it was written")
        read = json.loads(body)
        if read["code"] != code:
            raise ValueError("it was made by other code")
        self._modules: dict[str, dict[str, Any]] = read["modules"]
        self._pool: list[Any] = read["answers"]

    def of(self, module: str, text: str) -> Callable[[tuple[str, ...]], object] | None:
        """Return what answers questions about a module of that very text, `None` if it is not known."""
        about = self._modules.get(module)
        row = None if about is None else about["texts"].get(digest_of(text.encode("utf-8", "surrogatepass")))
        if about is None or row is None:
            return None
        there = range(len(self._pool))
        places = {asked: place for asked, place in zip(about["asked"], row, strict=True) if place in there}

        def known(question: tuple[str, ...]) -> object:
            place = places.get(" ".join(question))
            if place is None:
                return UNKNOWN
            found = self._pool[place]
            return found.get(python(), UNKNOWN) if question[0] == OF_PYTHON else found

        return known


def register(package: str) -> None:
    """Have the table of a package asked, if it has one. Nothing is read before that."""
    if package not in _packages:
        _packages.append(package)


def answers(module: str, text: str) -> Callable[[tuple[str, ...]], object] | None:
    """Return what answers questions about a module of that very text, `None` if nothing does."""
    for package in _packages:
        table = _table(package)
        try:
            found = None if table is None else table.of(module, text)
        except BROKEN:
            continue
        if found is not None:
            return found
    return None


def digest_of(data: bytes) -> str:
    """Return the digest of a text, or of a table."""
    from hashlib import sha256

    return sha256(data).hexdigest()[:LENGTH]


def python() -> str:
    """Return what tells Pythons apart that compile differently, also one that leaves out what is asserted."""
    from importlib.util import MAGIC_NUMBER

    less = f" -O{sys.flags.optimize}" if sys.flags.optimize else ""
    return f"{sys.implementation.cache_tag} {int.from_bytes(MAGIC_NUMBER[:2], 'little')}{less}"


def code() -> str:
    """Return the digest of the code that finds answers, as it lies here. Raises `OSError`."""
    if not _code:
        origins = {name: str(getattr(_module(name).__spec__, "origin", "")) for name in CODE}
        _code.append(digest_of(b"".join(_read(name, origin) for name, origin in origins.items())))
    return _code[0]


def _table(package: str) -> Table | None:
    if package not in _tables:
        try:
            _tables[package] = Table(_read(package, _place(package)), code())
        except BROKEN:
            _tables[package] = None
    return _tables[package]


def _place(package: str) -> str:
    return os.path.join(next(iter(_module(package).__path__), ""), NAME)


def _read(name: str, path: str) -> bytes:
    """Return a file by what loaded a module beside it: it may lie in an archive."""
    spec: Any = _module(name).__spec__
    found: bytes = spec.loader.get_data(path)
    return found


def _module(name: str) -> ModuleType:
    __import__(name)
    return sys.modules[name]
