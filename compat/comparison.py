"""One comparison of ranks after another through a store: what is written under which keys, and who waits.

What says which comparison this is stands in the store, and nowhere else. A process that counted by itself
would be out of step with one that takes the place of another, or comes into a group that was there before.

The first rank of the group calls: the number of its call comes from the store, so that it is new also where
a store outlives the group, the process, or both. Each other rank answers the call that is open, which is the
last one unless its verdict is there, and waits for the next otherwise. An answer is a digest, and what that
stands for unless another rank has written it. The first rank compares and writes the verdict. It does not
leave before all have read it: the store may live in its process.

Nobody looks twice a second whether something has changed: all waiting is done by the store.
"""

from __future__ import annotations

import json
import time
from datetime import timedelta

from overlay.pinning import agreement

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

#: Seconds that are allowed for reading and writing, when everybody is known to be there.
SLACK = 10.0


class Talk:
    """What the ranks of one group say to each other.

    Under `calls` stands the number of the last call, under `waits R` the call after which rank R began to
    wait. Under `N/`: `call`, the digest of rank R as `rank R`, what it has applied so far as `applied R`,
    what a digest stands for, the `verdict`, the number of its `readers`, `read` when that is complete, and
    what a rank said that had `given up` on it.
    """

    def __init__(self, store: Any, prefix: str, ranks: Sequence[int], applied: Iterable[str] = ()) -> None:
        self._store = store
        self._own = frozenset(applied)
        #: What ranks have applied: this one; and of the first rank, once it has heard all others, each.
        self.applied = {self._own}
        self._prefix = prefix
        self._ranks = ranks
        self._others = ranks[1:]

    def lead(self, facts: Mapping[str, str], files: Mapping[str, str], timeout: float) -> str:
        """Take part as the first rank: return what differs, or who did not come."""
        call = self._call()
        self._answer(call, self._ranks[0], facts, files)
        silent = self._silent(call, timeout)
        report = self._silence(silent, call - 1, timeout) + self._differences(call, silent)
        report = report or self._given_up(call)
        if not report:
            self._hear_applied(call)
        self._set(f"{call}/verdict", [report, len(self._others) - len(silent)])
        if len(silent) < len(self._others) and not self._wait(f"{call}/read", timeout=SLACK):
            return report or self._given_up(call)
        return report

    def follow(self, me: int, facts: Mapping[str, str], files: Mapping[str, str], timeout: float) -> str:
        """Take part as any other rank: return what the first rank says."""
        end = time.monotonic() + timeout
        while True:
            call = self.join(me, facts, files, max(end - time.monotonic(), 0.0))
            if not call:
                return self._nobody_called(me, timeout)
            said = self.hear(call, timeout)
            if said is not None:
                return said
            end = time.monotonic() + SLACK  # the first rank is there, and has called again

    def join(self, me: int, facts: Mapping[str, str], files: Mapping[str, str], timeout: float) -> int:
        """Answer the open call, or the next if there is none; return its number, 0 if nobody called."""
        end = time.monotonic() + timeout
        call = self._last_call()
        while not call or self._is_there(f"{call}/verdict"):
            self._set(f"waits {me}", call)
            if not self._wait(f"{call + 1}/call", timeout=end - time.monotonic()):
                return 0
            call = self._last_call()
        self._answer(call, me, facts, files)
        return call

    def hear(self, call: int, timeout: float) -> str | None:
        """Return the verdict on a call that was answered, `None` if the first rank has called again."""
        if not self._wait(f"{call}/verdict", timeout=timeout + SLACK):
            silent = [rank for rank in self._others if not self._is_there(f"{call}/rank {rank}")]
            report = self._silence(silent, call - 1, timeout) or agreement.no_verdict(
                self._ranks[0], timeout + SLACK
            )
            # The first rank may still be comparing, and must not think that all is well.
            self._set(f"{call}/given up", report)
            return report
        report, readers = self._get(f"{call}/verdict")
        if report is not None and self._store.add(self._key(f"{call}/readers"), 1) == readers:
            self._set(f"{call}/read", True)
        return None if report is None else str(report)

    def _call(self) -> int:
        call = int(self._store.add(self._key("calls"), 1))
        self._set(f"{call}/call", True)
        before = f"{call - 1}/verdict"
        if call > 1 and not self._is_there(before):
            self._set(before, [None, 0])  # for those who answered somebody that is gone
        return call

    def _last_call(self) -> int:
        return int(self._store.add(self._key("calls"), 0))

    def _answer(self, call: int, me: int, facts: Mapping[str, str], files: Mapping[str, str]) -> None:
        digest = agreement.digest_of(facts)
        if me != self._ranks[0]:
            self._set(f"{call}/applied {me}", sorted(self._own))
        if not self._is_there(f"{call}/{digest}"):
            self._set(f"{call}/{digest}", [dict(facts), dict(files)])
        self._set(f"{call}/rank {me}", digest)

    def _silent(self, call: int, timeout: float) -> list[int]:
        """Return the ranks that have not answered a call when the time is up."""
        answers = {rank: f"{call}/rank {rank}" for rank in self._others}
        if self._wait(*answers.values(), timeout=timeout):
            return []
        return [rank for rank, name in answers.items() if not self._is_there(name)]

    def _differences(self, call: int, silent: Sequence[int]) -> str:
        there = [rank for rank in self._ranks if rank not in silent]
        digests = dict(zip(there, self._get_all(f"{call}/rank {rank}" for rank in there), strict=True))
        kinds = list(dict.fromkeys(digests.values()))
        if len(kinds) == 1:
            return ""
        said = dict(zip(kinds, self._get_all(f"{call}/{kind}" for kind in kinds), strict=True))
        facts, files = ({digest: told[part] for digest, told in said.items()} for part in (0, 1))
        return f"the ranks do not run the same:\n{agreement.compare(digests, facts, files)}"

    def _hear_applied(self, call: int) -> None:
        """Hear what the others have applied: a patch that waits on one of them is no difference."""
        names = [f"{call}/applied {rank}" for rank in self._others]
        if not self._store.check(list(map(self._key, names))):
            self.applied.add(frozenset())  # one of them does not say so
            return
        self.applied |= set(map(frozenset, self._get_all(names)))

    def _silence(self, silent: Sequence[int], before: int, timeout: float) -> str:
        """Return a sentence on the ranks that did not answer: some came, and did not wait long enough."""
        left = [rank for rank in silent if self._waits_after(rank) == before]
        return agreement.silence([rank for rank in silent if rank not in left], timeout) + agreement.gave_up(
            left, self._ranks[0]
        )

    def _nobody_called(self, me: int, timeout: float) -> str:
        """Return a sentence on the first rank, and on those others that are not waiting for it either."""
        call = self._last_call()
        others = [rank for rank in self._others if rank != me and self._waits_after(rank) != call]
        report = agreement.silence([self._ranks[0], *others], timeout)
        if not call or self._is_there(f"{call}/rank {me}"):
            return report
        said = self._get(f"{call}/verdict")[0] if self._is_there(f"{call}/verdict") else None
        return report + (agreement.without(me, said) if said else "")

    def _waits_after(self, rank: int) -> int | None:
        name = f"waits {rank}"
        return int(self._get(name)) if self._is_there(name) else None

    def _given_up(self, call: int) -> str:
        """Return what others said who no longer wait for the verdict, if there are any."""
        name = f"{call}/given up"
        return str(self._get(name)) if self._is_there(name) else ""

    def _wait(self, *names: str, timeout: float) -> bool:
        keys = list(map(self._key, names))
        try:
            self._store.wait(keys, timedelta(seconds=max(timeout, 0.001)))
        except RuntimeError:  # the time is up; or the store is gone, and then this raises too
            return bool(self._store.check(keys))
        return True

    def _is_there(self, name: str) -> bool:
        return bool(self._store.check([self._key(name)]))

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}"

    def _set(self, name: str, value: object) -> None:
        self._store.set(self._key(name), json.dumps(value))

    def _get(self, name: str) -> Any:
        return json.loads(self._store.get(self._key(name)))

    def _get_all(self, names: Iterable[str]) -> list[Any]:
        keys = list(map(self._key, names))
        many = self._store.has_extended_api()
        return [
            json.loads(text) for text in (self._store.multi_get(keys) if many else map(self._store.get, keys))
        ]
