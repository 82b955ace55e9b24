"""Agreement between ranks, through the store that `torch.distributed` keeps for a process group.

The store and not a collective, for two reasons: a rank that runs no overlay code does not take part, and its
next collective would be taken for the answer; and the store works with any backend and touches no device.

Each rank writes a digest, and what that stands for unless another rank has. The first rank of the group
compares and writes a verdict, which the others wait for. Nobody leaves before all have read it: the store may
live in a process that is about to raise.
"""

from __future__ import annotations

import json
from datetime import timedelta
from hashlib import sha256

from overlay import _agreement, _log
from overlay.errors import AgreementError, OverlayError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

#: Seconds that are allowed for reading and writing, when everybody is known to be there.
SLACK = 10.0

#: How often the ranks of each group have been compared: every comparison has keys of its own.
_rounds: dict[str, int] = {}


def is_distributed() -> bool:
    """Return whether there are several ranks to compare, and a store to do it through."""
    import torch.distributed as dist

    return (
        dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1 and _store() is not None
    )


def agree(group: Any, timeout: float, facts: Mapping[str, str], files: Mapping[str, str]) -> None:
    """Compare what this rank says of itself with all ranks of a group. See `overlay.agree`."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        raise OverlayError("there is no process group whose ranks could be compared: initialise it first")
    if group == dist.GroupMember.NON_GROUP_MEMBER:
        return
    ranks = sorted(dist.get_process_group_ranks(group or dist.group.WORLD))
    store = _store()
    if store is None:
        raise OverlayError("this backend keeps no store, through which ranks are compared")
    if len(ranks) > 1 and dist.get_backend(group) != "fake":  # whose other ranks are nobody
        compare_through(store, ranks, dist.get_rank(), timeout, facts, files)


def _store() -> Any:
    from torch.distributed.distributed_c10d import _get_default_store

    try:
        return _get_default_store()
    except (AttributeError, ValueError):  # without a process group
        return None


def compare_through(  # noqa: D417 -- the last two are as in `agree`
    store: Any,
    ranks: Sequence[int],
    me: int,
    timeout: float,
    facts: Mapping[str, str],
    files: Mapping[str, str],
) -> None:
    """Take part in one comparison. Raises `AgreementError`.

    Args:
        store: A store that all ranks share.
        ranks: All ranks of the group, the first of which compares.
        me: This rank.
        timeout: Seconds to wait for a rank that does not come.
    """
    name = sha256(repr(list(ranks)).encode()).hexdigest()[:16]
    _rounds[name] = number = _rounds.get(name, 0) + 1
    talk = Talk(store, f"overlay/agree/{name}/{number}", ranks)
    try:
        talk.say(me, facts, files)
        report = talk.lead(timeout) if me == ranks[0] else talk.follow(timeout)
    except RuntimeError as error:
        raise AgreementError(f"the ranks could not be compared: their store failed: {error}") from error
    if report:
        raise AgreementError(report)
    _log.debug(f"{_agreement.spans(ranks)} agree")


class Talk:
    """One comparison: what is written under which keys, and who waits for whom."""

    def __init__(self, store: Any, prefix: str, ranks: Sequence[int]) -> None:
        self._store = store
        self._prefix = prefix
        self._ranks = ranks

    def say(self, me: int, facts: Mapping[str, str], files: Mapping[str, str]) -> None:
        """Write what a rank says of itself, by its digest unless that is there already."""
        digest = _agreement.digest_of(facts)
        if not self._store.check([self._key(digest)]):
            self._set(digest, [dict(facts), dict(files)])
        self._set(f"rank {me}", digest)

    def lead(self, timeout: float) -> str:
        """Compare, tell the others, and return what differs."""
        silent = self._silent(timeout)
        there = [rank for rank in self._ranks if rank not in silent]
        digests = dict(zip(there, self._get([f"rank {rank}" for rank in there]), strict=True))
        report = self._given_up() or _silence(silent, timeout) + self._differences(digests)
        self._set("verdict", [report, len(there) - 1])
        if len(there) > 1 and not self._wait(["read"], SLACK):
            return report or self._given_up()
        return report

    def follow(self, timeout: float) -> str:
        """Wait for what the first rank says, and return it."""
        leader = f"rank {self._ranks[0]}"
        if not self._wait([leader], timeout) or not self._wait(["verdict"], timeout + SLACK):
            report = _silence(self._silent(0.0) or [self._ranks[0]], timeout)
            self._set(
                "given up", report
            )  # the first rank may still come, and must not think that all is well
            return report
        ((report, readers),) = self._get(["verdict"])
        if self._store.add(self._key("readers"), 1) == readers:
            self._set("read", True)
        return str(report)

    def _given_up(self) -> str:
        """Return what others said who no longer wait for the first rank, if there are any."""
        return str(self._get(["given up"])[0]) if self._store.check([self._key("given up")]) else ""

    def _differences(self, digests: Mapping[int, str]) -> str:
        kinds = list(dict.fromkeys(digests.values()))
        if len(kinds) == 1:
            return ""
        said = dict(zip(kinds, self._get(kinds), strict=True))
        facts, files = ({digest: told[part] for digest, told in said.items()} for part in (0, 1))
        table = _agreement.compare(digests, facts, files)
        return f"the ranks do not run the same:\n{table}"

    def _silent(self, timeout: float) -> list[int]:
        """Return the ranks that have said nothing when the time is up."""
        if self._wait([f"rank {rank}" for rank in self._ranks], timeout):
            return []
        return [rank for rank in self._ranks if not self._store.check([self._key(f"rank {rank}")])]

    def _wait(self, names: list[str], timeout: float) -> bool:
        keys = list(map(self._key, names))
        try:
            self._store.wait(keys, timedelta(seconds=max(timeout, 0.001)))
        except RuntimeError:  # the time is up; or the store is gone, and then this raises too
            return bool(self._store.check(keys))
        return True

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}"

    def _set(self, name: str, value: object) -> None:
        self._store.set(self._key(name), json.dumps(value))

    def _get(self, names: Sequence[str]) -> list[Any]:
        keys = list(map(self._key, names))
        many = self._store.has_extended_api()
        return [
            json.loads(text) for text in (self._store.multi_get(keys) if many else map(self._store.get, keys))
        ]


def _silence(ranks: Sequence[int], timeout: float) -> str:
    if not ranks:
        return ""
    return (
        f"{_agreement.spans(ranks)} did not take part within {timeout:g} s: overlay was not enabled there "
        "when the process groups were made, or the process hangs\n"
    )
