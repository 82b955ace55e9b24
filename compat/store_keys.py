"""JSON values under a prefix of a `torch.distributed` store: what ranks write for each other, and wait for.

All that is used is in every store: `add`, `set`, `get`, `check` and `wait`. Where many keys are read, that is
done in blocks: a message to a store has a limit.
"""

from __future__ import annotations

import json
import time
from datetime import timedelta

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

#: Keys in one message.
BLOCK = 512
#: Seconds that a store may take for one answer, besides what it was asked to wait.
PATIENCE = 30.0


class Keys:
    """A part of a store. All methods raise `RuntimeError` if the store fails."""

    def __init__(self, store: Any, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        #: When the store should have answered what it was asked last, by `time.monotonic`.
        self.due = time.monotonic() + PATIENCE

    def count(self, name: str, by: int = 0) -> int:
        """Add to a counter, which is 0 if nobody has, and return what it is then."""
        return int(self._asked().add(self._key(name), by))

    def set(self, name: str, value: object) -> None:
        """Write a value."""
        self._asked().set(self._key(name), json.dumps(value))

    def get(self, name: str) -> Any:
        """Read a value that is there."""
        return json.loads(self._asked().get(self._key(name)))

    def has(self, *names: str) -> bool:
        """Tell whether all of some values are there."""
        return bool(self._asked().check(list(map(self._key, names))))

    def wait(self, name: str, timeout: float) -> bool:
        """Wait for a value, and tell whether it has come within so many seconds."""
        timeout = max(timeout, 0.001)
        try:
            self._asked(timeout).wait([self._key(name)], timedelta(seconds=timeout))
        except RuntimeError:  # the time is up; or the store is gone, and then this raises too
            return self.has(name)
        return True

    def missing(self, names: Sequence[str]) -> list[str]:
        """Return those values that are not there, in a number of questions that depends on theirs."""
        found: list[str] = []
        blocks = [names[start : start + BLOCK] for start in range(0, len(names), BLOCK)][::-1]
        while blocks:
            block = blocks.pop()
            if self.has(*block):
                continue
            if len(block) == 1:
                found += block
                continue
            half = len(block) // 2
            blocks += [block[half:], block[:half]]
        return found

    def get_all(self, names: Sequence[str]) -> list[Any]:
        """Read values that are there."""
        keys = list(map(self._key, names))
        found: list[Any] = []
        many = self._store.has_extended_api()
        for start in range(0, len(keys), BLOCK):
            block = keys[start : start + BLOCK]
            texts = self._asked().multi_get(block) if many else [self._asked().get(key) for key in block]
            found += map(json.loads, texts)
        return found

    def enter(self, name: str, value: object) -> int:
        """Write a value at the end of a list, and return how many it has then."""
        number = self.count(name, 1)
        self.set(f"{name} {number}", value)
        return number

    def entered(self, name: str) -> list[Any]:
        """Read a list, without the values of those who have ended while they were writing."""
        names = [f"{name} {number + 1}" for number in range(self.count(name))]
        lost = set(self.missing(names))
        return self.get_all([one for one in names if one not in lost])

    def _asked(self, timeout: float = 0.0) -> Any:
        self.due = time.monotonic() + timeout + PATIENCE
        return self._store

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}"
