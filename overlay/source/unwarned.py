"""Sources of others are parsed and compiled without a warning."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


def parse(text: str | bytes, file: str) -> ast.Module:
    """Parse a source. Raises what `ast.parse` does, with the name of the file."""
    with unwarned(file):
        return ast.parse(text, file)


@contextmanager
def unwarned(file: str) -> Iterator[None]:
    r"""Ignore, in this block, what Python warns of in a file that is compiled under this name.

    It warns of a string like "\d". With `-W error` such a source would not parse; else the log would have
    a line that Python has written already, or that is no concern of the job.
    """
    # `warnings.catch_warnings` changes the filters of all threads, may leave those of another one in place,
    # and makes Python repeat each warning that it gives once.
    import re
    import warnings

    rule = ("ignore", None, Warning, re.compile(rf"{re.escape(file.removesuffix('.py'))}\Z"), 0)
    filters: list[Any] = warnings.filters  # type: ignore[assignment]
    filters.insert(0, rule)
    try:
        yield
    finally:
        with suppress(ValueError):  # somebody has reset them
            filters.remove(rule)
