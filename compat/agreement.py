"""Agreement between ranks, through the store that `torch.distributed` keeps for a process group.

A rank that runs no overlay code takes no part, and its next collective would be taken for the answer to one
of ours. The store works with any backend, and touches no device.

Each rank writes down what it says of itself, unless somebody has said the same, and counts itself. The last
to come judges for all, or the first whose time is up. It reads nothing of single ranks where they agree.

A store may outlive its ranks: torchrun keeps its own when it restarts them. What a rank said before it died
still stands there, and nobody else can tell. So ranks that agree wait until each of them has heard so, which
the dead do not, and a rank goes on to the next round as soon as another one has begun that.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from hashlib import sha256

from overlay import log
from overlay.errors import AgreementError, OverlayError
from overlay.records import agreement
from overlay.runtime.process import here

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

#: Seconds before the timeout of a group at which who has not come is named, and a fifth of it at most.
MARGIN = 10.0
#: Seconds after which a warning names who has not come, if the wait is not shorter than twice that.
REMINDER = 60.0
#: Seconds that may pass between looks at the store. Waiting within it would lock it for all threads here.
PAUSE = 0.5
#: Seconds for who judges to read what all have written, and for all to hear the verdict.
SLACK = 30.0


def is_distributed() -> bool:
    """Return whether there are several ranks to compare, and a store to do it through."""
    import torch.distributed as dist

    return _store() is not None and dist.get_world_size() > 1


def agree(group: Any, timeout: float | None, said: agreement.Statement) -> None:
    """Compare what this rank says of itself with all ranks of a group. See `overlay.agree`.

    The first rank of the group then says in the log that they agree, and what all of them have.
    """
    import torch.distributed as dist

    store = _store()
    if store is None:
        raise OverlayError("there is no process group with a store to compare ranks by: initialise one first")
    if group == dist.GroupMember.NON_GROUP_MEMBER:
        return
    try:
        ranks = sorted(dist.get_process_group_ranks(group or dist.group.WORLD))
    except (KeyError, TypeError):
        raise OverlayError(f"{group!r} is no process group, or one that was destroyed") from None
    if len(ranks) == 1 or dist.get_backend(group) == "fake":  # whose other ranks are nobody
        return
    job_log, me = here().job_log, dist.get_rank()
    patience = _patience(group) if timeout is None else timeout
    try:
        everywhere, anywhere, refused = Comparison(store, _name(group), ranks, me).agree(said, patience)
    except AgreementError:
        job_log.note_disagreement()
        raise
    if said.account is not None:
        job_log.compared_with = agreement.spans(ranks)
    if said.account is None or me != ranks[0]:
        job_log.clear()
        log.debug(f"{agreement.spans(ranks)} agree")
        return
    who = f"{len(ranks)} ranks" if len(ranks) == dist.get_world_size() else agreement.spans(ranks)
    account = said.account.replace(applied=tuple(anywhere), refused=tuple(refused))
    job_log.say_agreed(f"{who} agree: {account.sentence(everywhere)}")


def _name(group: Any) -> str:
    """Return what torch calls a process group: the same on all its ranks, which meet by it."""
    from torch.distributed import distributed_c10d as c10d

    # By this table and not as an attribute, which groups that somebody has wrapped need not have.
    names: dict[Any, str] = dict(c10d._world.pg_names)  # noqa: SLF001 -- no other way
    return str(names.get(group or c10d.GroupMember.WORLD, ""))


def _store() -> Any:
    from torch.distributed import is_available

    try:
        from torch.distributed.distributed_c10d import _get_default_store

        return _get_default_store() if is_available() else None
    except (AttributeError, ImportError, RuntimeError, ValueError):  # without a process group
        return None


def _patience(group: Any) -> float:
    """Return how long to wait for ranks: less than the timeout of their group, so that they are named."""
    import torch.distributed as dist

    found: Any = group or dist.group.WORLD
    try:
        backends = [found._get_backend(device) for device in found._device_types]  # noqa: SLF001
        timeout: float = min(one.options._timeout.total_seconds() for one in backends)  # noqa: SLF001
    except (AttributeError, RuntimeError, ValueError):  # somebody has wrapped it, or the backend is unusual
        timeout = dist.default_pg_timeout.total_seconds()
    return max(timeout - MARGIN, 0.8 * timeout)


class _OverError(Exception):
    """Others have begun the next round, and this one has no end: a rank has died in it."""


class Comparison:
    """One comparison of the ranks of a group, of which this is `me`."""

    def __init__(self, store: Any, name: str, ranks: Sequence[int], me: int) -> None:
        self._store, self._ranks, self._me = store, ranks, me
        self._all = f"overlay/agree/{sha256(repr([name, *ranks]).encode()).hexdigest()[:16]}"
        self._place = self._next = self._all

    def agree(self, said: agreement.Statement, patience: float) -> tuple[list[str], list[str], list[str]]:
        """Return the patches that are applied on all ranks and on any, and those refused on any.

        `said`: what this rank says of itself. `patience`: seconds to wait for ranks that do not come. Raises
        `AgreementError`.
        """
        begin = time.monotonic()
        verdict: dict[str, Any] = {}
        try:
            while not verdict:  # until a round has an end
                # Counted in the store and not here: this process may have taken the place of another.
                self._place = self._all
                number = self._count(f"rank {self._me}", 1)
                self._place, self._next = f"{self._all}/{number}", f"{self._all}/{number + 1}"
                with suppress(_OverError):
                    verdict = self._round(said, begin, patience)
        except AgreementError:
            raise
        except RuntimeError as error:
            raise AgreementError(f"the ranks could not be compared: their store failed: {error}") from error
        if verdict["report"]:
            raise AgreementError(verdict["report"])
        return verdict["everywhere"], verdict["anywhere"], verdict["refused"]

    def _round(self, said: agreement.Statement, begin: float, patience: float) -> dict[str, Any]:
        """Say what this rank has to say, and return what is said of all, by this rank if it is the one."""
        if self._others_went_on():
            raise _OverError
        account = said.account
        outcome = [dict(said.outcome), list(account.applied) if account is not None else []]
        facts = dict(said.facts)
        kinds = [self._say("facts", facts, [facts, dict(said.notes)]), self._say("outcome", outcome, outcome)]
        if account is not None and account.refused:  # apart, as another version of overlay may judge
            self._say("refused", account.refused, account.refused)
        self._set(f"rank {self._me}", kinds)
        came, world = self._count("came", 1), len(self._ranks)
        if came == world or not self._comes("verdict", begin + patience - time.monotonic(), "rank"):
            if self._count("judges", 1) == 1:
                self._set("verdict", self._judge(patience))
            elif not self._comes("verdict", SLACK):
                raise AgreementError("the ranks were not compared: who was to do it hangs or has ended")
        verdict = dict(self._get("verdict"))
        left = max(begin + patience - time.monotonic(), SLACK)
        if not verdict["report"]:
            self._set(f"heard {self._me}", True)
            if not self._hear(world, left, "heard"):
                raise AgreementError(agreement.silence(self._silent("heard"), patience))
        elif came > verdict["readers"]:
            self._comes("a next round", SLACK)  # this rank is late, or has come after one that was
        else:
            with suppress(RuntimeError):  # who keeps the store has seen that all have heard, and is gone
                self._hear(verdict["readers"], left)
        return verdict

    def _hear(self, readers: int, seconds: float, part: str = "") -> bool:
        """Note that this rank has heard the verdict, and return whether all do within so many seconds."""
        if self._count("heard", 1) == readers:
            self._set("all have heard", True)
        return self._comes("all have heard", seconds, part)

    def _say(self, part: str, compared: object, value: object) -> str:
        """Write down what this rank says, unless somebody has said the same. Return the digest of that."""
        digest = sha256(json.dumps(compared, sort_keys=True).encode()).hexdigest()
        if self._count(f"{part} {digest}", 1) == 1:
            self._set(f"{part} {self._count(part, 1)}", [digest, value])
        return digest

    def _judge(self, patience: float) -> dict[str, Any]:
        readers = self._count("came")
        silent = self._silent("rank") if readers < len(self._ranks) else []
        # What the digests stand for: of as many as there are, which is one where all have the same.
        facts, outcomes, refused = (
            dict(self._get(f"{part} {number + 1}") for number in range(self._count(part)))
            for part in ("facts", "outcome", "refused")
        )
        report = agreement.silence(silent, patience)
        if len(facts) > 1 or len(outcomes) > 1:
            by_kind: dict[tuple[str, str], list[int]] = {}
            for rank in self._ranks:
                if rank not in silent:
                    by_kind.setdefault(tuple(self._get(f"rank {rank}")), []).append(rank)
            kinds = []
            for (one, other), ranks in by_kind.items():
                (said, notes), (outcome, _) = facts[one], outcomes[other]
                kinds.append((agreement.Statement(facts=said, notes=notes, outcome=outcome), ranks))
            table = agreement.differences(kinds)
            report += f"the ranks do not run the same:\n{table}" if table else ""
        applied = [frozenset(ids) for _, ids in outcomes.values()]
        return {
            "report": report,
            "readers": readers,
            "everywhere": sorted(frozenset.intersection(*applied)),
            "anywhere": sorted(frozenset.union(*applied)),
            "refused": sorted({name for ids in refused.values() for name in ids}),
        }

    def _silent(self, part: str) -> list[int]:
        return [rank for rank in self._ranks if not self._has(f"{part} {rank}")]

    def _comes(self, name: str, seconds: float, part: str = "") -> bool:
        """Wait for a value, and tell whether it has come within so many seconds.

        `part`: what each rank writes that is waited for, so that a warning can name those who have not.
        Raises `_OverError` if it has not come and others have begun the next round.
        """
        begin = time.monotonic()
        reminder = begin + min(REMINDER, seconds / 2) if part else begin + seconds
        pause = len(self._ranks) / 20_000  # the more ranks, the less often each looks
        while not self._has(name):
            # They may have done that because it has come in the meantime.
            if self._others_went_on() and not self._has(name):
                raise _OverError
            now = time.monotonic()
            if now >= begin + seconds:
                return False
            if now >= reminder:
                reminder = begin + seconds
                if self._count("reminders", 1) == 1:
                    log.warning(agreement.lateness(self._silent(part), now - begin, seconds))
            time.sleep(min(pause, begin + seconds - now))
            pause = min(2 * pause, PAUSE)
        return True

    def _others_went_on(self) -> bool:
        return bool(self._store.check([f"{self._next}/came"]))

    # Values are JSON. All that is used is in every store.

    def _count(self, name: str, by: int = 0) -> int:
        return int(self._store.add(f"{self._place}/{name}", by))

    def _set(self, name: str, value: object) -> None:
        self._store.set(f"{self._place}/{name}", json.dumps(value))

    def _get(self, name: str) -> Any:
        return json.loads(self._store.get(f"{self._place}/{name}"))

    def _has(self, name: str) -> bool:
        return bool(self._store.check([f"{self._place}/{name}"]))
