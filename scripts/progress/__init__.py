"""What a long command is at: a line on stderr for each thing that it works on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def tracked(items: Iterable[T], name: Callable[[T], str] = str) -> Iterator[T]:
    """Yield items, and name on stderr the one that is being worked on."""
    for item in items:
        print(f"{name(item)} ...", file=sys.stderr, flush=True)
        yield item
