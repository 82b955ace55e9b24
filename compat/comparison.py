"""One comparison of ranks after another through a store: what is written under which keys, and who waits.

What says which comparison this is stands in the store, and nowhere else. A process that counted by itself
would be out of step with one that takes the place of another, or comes into a group that was there before.

The first rank of the group calls: the number of its call comes from the store, so that it is new also where
a store outlives the group, the process, or both. With the call goes its digest, and what it has applied.
Each other rank answers the call that is open, which is the last one unless its verdict is there, and waits
for the next otherwise. Who has the same digest counts itself, and no more; who has another writes it down
before, and what that stands for unless somebody has. Whoever is the last to count itself says so. So the
first rank reads one number where all agree, however many there are, and of those who differ where they do
not. Only if somebody is missing does it look who, in the list of those who came. It writes the verdict, and
does not leave before all have read it: the store may live in its process.

Where the first rank does not come, or says nothing, one of the others finds out for all who is missing.
Whoever comes after that has a finding of its own, since it may belong to another start of the job, and adds
the one before: so every rank of a start says what the first to give up has found.

Nobody looks twice a second whether something has changed: all waiting is done by the store.
"""

from __future__ import annotations

import time
from contextlib import suppress

from overlay.compat.store_keys import Keys
from overlay.pinning import agreement

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    #: Ranks of whom nothing was heard, and ranks that came and had given up.
    Missing = tuple[list[int], list[int]]

#: Seconds that are allowed for reading and writing, when everybody is known to be there.
SLACK = 10.0


class Talk:
    """What the ranks of one group say to each other.

    Under `calls` stands the number of the last call, and `waits N` lists the ranks that have waited for one
    after call N, each with the round in which it did: of such `rounds` as many have ended, each with what was
    found as `nobody ROUND`. Under `N/`: `call`, the digest of the first rank and what it has applied; how
    often rank R has answered as `rank R`; the ranks that have as the list `came`, and `all` when that is
    complete; `odd`, a list of ranks with other digests; `applied`, a list of what ranks have applied that is
    not what the first has; what a digest stands for; the `verdict`, the number of its `readers`, `read` when
    that is complete, who was found `missing` without a verdict, and what a rank said that had `given up`.
    """

    def __init__(self, store: Any, prefix: str, ranks: Sequence[int], applied: Iterable[str] = ()) -> None:
        self.keys = Keys(store, prefix)
        self._own = frozenset(applied)
        #: What ranks have applied: this one; and of the first rank, once it has heard all others, each kind.
        self.applied = {self._own}
        self._ranks = ranks
        self._others = ranks[1:]
        #: The last call when this rank began to wait for the next, and the round of those who wait.
        self._waits = 0, 0

    def lead(self, facts: Mapping[str, str], files: Mapping[str, str], timeout: float) -> str:
        """Take part as the first rank: return what differs, or who did not come."""
        call = self._call(agreement.digest_of(facts))
        try:
            return self._judge(call, facts, files, timeout)
        except Exception as error:
            # Whoever has answered waits for a word.
            with suppress(Exception):
                if not self.keys.has(f"{call}/verdict"):
                    said = f"rank {self._ranks[0]} could not compare: {type(error).__name__}: {error}"
                    self.keys.set(f"{call}/verdict", [said, 0])
            raise

    def _judge(self, call: int, facts: Mapping[str, str], files: Mapping[str, str], timeout: float) -> str:
        """Wait for the answers to a call, and give the verdict."""
        silent = self._silent(call, timeout)
        report = self._sentences(self._missing(silent, call - 1), timeout)
        report += self._differences(call, silent, facts, files)
        report = report or self._given_up(call)
        if not report:
            # A patch that waits on one of them is no difference.
            self.applied |= set(map(frozenset, self.keys.entered(f"{call}/applied")))
        # Of those who are called silent, some may have come since: they read it too.
        readers = self.keys.count(f"{call}/came") if silent else len(self._others)
        self.keys.set(f"{call}/verdict", [report, readers])
        if readers and not self.keys.wait(f"{call}/read", timeout=SLACK):
            return report or self._given_up(call)
        return report

    def follow(self, me: int, facts: Mapping[str, str], files: Mapping[str, str], timeout: float) -> str:
        """Take part as any other rank: return what the first rank says."""
        end = time.monotonic() + timeout
        while True:
            call = self.join(me, facts, files, max(end - time.monotonic(), 0.0))
            if not call:
                return self._nobody_called(me, timeout)
            said = self.hear(call, me, timeout)
            if said is not None:
                return said
            end = time.monotonic() + SLACK  # the first rank is there, and has called again

    def join(self, me: int, facts: Mapping[str, str], files: Mapping[str, str], timeout: float) -> int:
        """Answer the open call, or the next if there is none; return its number, 0 if nobody called."""
        end = time.monotonic() + timeout
        call = self._last_call()
        while not call or self.keys.has(f"{call}/verdict"):
            self._wait_after(call, me)
            if not self.keys.wait(f"{call + 1}/call", timeout=end - time.monotonic()):
                return 0
            call = self._last_call()
        self._answer(call, me, facts, files)
        return call

    def hear(self, call: int, me: int, timeout: float) -> str | None:
        """Return the verdict on a call that was answered, `None` if the first rank has called again."""
        if not self.keys.wait(f"{call}/verdict", timeout=timeout + SLACK):
            missing, before = self._found_for_all(
                f"{call}/missing", me, lambda: self._missing(self._unanswered(call), call - 1)
            )
            report = self._sentences(missing, timeout) or agreement.no_verdict(
                self._ranks[0], timeout + SLACK
            )
            if before:
                report += agreement.without(me, self._sentences(before, timeout))
            # The first rank may still be comparing, and must not think that all is well.
            if not self.keys.has(f"{call}/given up"):
                self.keys.set(f"{call}/given up", report)
            return report
        report, readers = self.keys.get(f"{call}/verdict")
        if report is not None and self.keys.count(f"{call}/readers", 1) == readers:
            self.keys.set(f"{call}/read", True)
        return None if report is None else str(report)

    def _call(self, digest: str) -> int:
        call = self.keys.count("calls", 1)
        self.keys.set(f"{call}/call", [digest, sorted(self._own)])
        before = f"{call - 1}/verdict"
        if call > 1 and not self.keys.has(before):
            self.keys.set(before, [None, 0])  # for those who answered somebody that is gone
        return call

    def _last_call(self) -> int:
        return self.keys.count("calls")

    def _answer(self, call: int, me: int, facts: Mapping[str, str], files: Mapping[str, str]) -> None:
        digest = agreement.digest_of(facts)
        # It is there a moment after the number of the call, unless the first rank has ended in between.
        there = self.keys.wait(f"{call}/call", timeout=SLACK)
        called, applied = self.keys.get(f"{call}/call") if there else ("", [])
        same = called == digest
        own = sorted(self._own)
        if own != applied and self.keys.count(f"{call}/applied {own}", 1) == 1:
            self.keys.enter(f"{call}/applied", own)  # once for all ranks that have the same
        if not same:
            if not self.keys.has(f"{call}/{digest}"):
                self.keys.set(f"{call}/{digest}", [dict(facts), dict(files)])
            self.keys.enter(f"{call}/odd", [me, digest])
        if self.keys.count(f"{call}/rank {me}", 1) > 1:
            # A process in whose place this one is has answered, and was counted.
            if same:
                self.keys.enter(f"{call}/odd", [me, digest])
            return
        if not same:
            self.keys.count(f"{call}/with {digest}", 1)
        if self.keys.enter(f"{call}/came", me) == len(self._others):
            self.keys.set(f"{call}/all", True)

    def _silent(self, call: int, timeout: float) -> list[int]:
        """Return the ranks that have not answered a call when the time is up."""
        return [] if self.keys.wait(f"{call}/all", timeout) else self._unanswered(call)

    def _unanswered(self, call: int) -> list[int]:
        came = self.keys.count(f"{call}/came")
        if came in (0, len(self._others)):
            return [] if came else list(self._others)
        there = set(self.keys.entered(f"{call}/came"))
        return [rank for rank in self._others if rank not in there]

    def _differences(
        self, call: int, silent: Iterable[int], facts: Mapping[str, str], files: Mapping[str, str]
    ) -> str:
        odd = self._odd(call)
        if not odd:
            return ""
        own, gone = agreement.digest_of(facts), set(silent)
        digests = {rank: odd.get(rank, own) for rank in self._ranks if rank not in gone}
        kinds = [kind for kind in dict.fromkeys(digests.values()) if kind != own]
        if not kinds:
            return ""
        told = zip(kinds, self.keys.get_all([f"{call}/{kind}" for kind in kinds]), strict=True)
        said = {own: [facts, files], **dict(told)}
        all_facts, all_files = ({kind: parts[part] for kind, parts in said.items()} for part in (0, 1))
        return f"the ranks do not run the same:\n{agreement.compare(digests, all_facts, all_files)}"

    def _odd(self, call: int) -> dict[int, str]:
        """Return the digests of the ranks that do not have the first one's."""
        number = self.keys.count(f"{call}/odd")
        first = f"{call}/odd 1"
        if number == len(self._others) and self.keys.has(first):
            # Often it is the first rank alone that differs, and what all others have is soon read.
            digest = self.keys.get(first)[1]
            if self.keys.count(f"{call}/with {digest}") == number:
                return dict.fromkeys(self._others, digest)
        return dict(self.keys.entered(f"{call}/odd")) if number else {}

    def _missing(self, silent: Sequence[int], before: int) -> Missing:
        """Tell ranks that did not answer apart: some came, and did not wait long enough."""
        waited = {rank for rank, _ in self.keys.entered(f"waits {before}")} if silent else set()
        return [rank for rank in silent if rank not in waited], [rank for rank in silent if rank in waited]

    def _sentences(self, missing: Missing, timeout: float) -> str:
        silent, left = missing
        return agreement.silence(silent, timeout) + agreement.gave_up(left, self._ranks[0])

    def _wait_after(self, call: int, me: int) -> None:
        """Say that this rank waits for the call after one, in the round that has not ended."""
        while True:
            self._waits = call, self.keys.count(f"{call}/rounds")
            self.keys.enter(f"waits {call}", [me, self._waits[1]])
            # Whoever ends a round says so before it looks who is in it.
            if self.keys.count(f"{call}/rounds") == self._waits[1]:
                return

    def _nobody_called(self, me: int, timeout: float) -> str:
        """Return a sentence on the first rank, and on those others that are not waiting for it either."""
        call, number = self._waits

        def look() -> Missing:
            if self.keys.count(f"{call}/rounds") == number:
                self.keys.count(f"{call}/rounds", 1)
            waiting = {me, *(rank for rank, wait in self.keys.entered(f"waits {call}") if wait == number)}
            return [rank for rank in self._ranks if rank not in waiting], []

        (silent, _), _ = self._found_for_all(f"{call}/nobody {number}", me, look)
        report = agreement.silence(silent, timeout)
        before = f"{call}/nobody {number - 1}"
        if number and self.keys.has(before):
            report += agreement.without(me, self._sentences(_missing_of(self.keys.get(before)), timeout))
        if not call or self.keys.has(f"{call}/rank {me}"):
            return report
        said = self.keys.get(f"{call}/verdict")[0] if self.keys.has(f"{call}/verdict") else None
        return report + (agreement.without(me, said) if said else "")

    def _found_for_all(
        self, name: str, me: int, look: Callable[[], Missing]
    ) -> tuple[Missing, Missing | None]:
        """Return what one rank has found out for all, and find it out if that is this one.

        That is the first one that asks; whoever comes when it no longer answers; and whoever is called
        missing, which gets what calls it so too.
        """
        before = None
        if self.keys.count(f"{name} asked", 1) > 1 and self.keys.wait(name, timeout=SLACK):
            before = silent, left = _missing_of(self.keys.get(name))
            if me not in silent and me not in left:
                return before, None
        found = look()
        self.keys.set(name, [agreement.runs_of(ranks) for ranks in found])
        return found, before

    def _given_up(self, call: int) -> str:
        """Return what others said who no longer wait for the verdict, if there are any."""
        name = f"{call}/given up"
        return str(self.keys.get(name)) if self.keys.has(name) else ""


def _missing_of(told: Sequence[Sequence[Sequence[int]]]) -> Missing:
    """Return the ranks that were written down as runs."""
    silent, left = map(agreement.ranks_of, told)
    return silent, left
