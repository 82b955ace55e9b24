"""Doing something in several threads at once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


def at_once(work: Callable[[int], Result], threads: int) -> list[Result]:
    """Return what each thread makes of its number. Raises what the first of them has raised."""
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, range(threads), timeout=60))
