"""What planning may cost: counted, not timed, so that all ranks stop at the same place."""

from __future__ import annotations

import sys


class Meter:
    """Operations that are left. One is about a microsecond of CPython on a server of the year 2024."""

    __slots__ = ("left",)

    def __init__(self, left: int = sys.maxsize) -> None:
        """Allow so many."""
        self.left = left

    def take(self, operations: int) -> bool:
        """Take so many, if there are as many left; tell whether there were."""
        if operations > self.left:
            return False
        self.left -= operations
        return True
