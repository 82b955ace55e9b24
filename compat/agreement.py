"""Agreement between ranks, through the store that `torch.distributed` keeps for a process group.

The store and not a collective, for two reasons: a rank that runs no overlay code does not take part, and its
next collective would be taken for the answer; and the store works with any backend and touches no device.

How ranks find each other in a store that others have used before is told in `overlay.compat.comparison`.
"""

from __future__ import annotations

import time
from hashlib import sha256
from threading import Thread

from overlay import log
from overlay.compat.comparison import Talk
from overlay.compat.store_keys import PATIENCE
from overlay.enabling.process import here
from overlay.errors import AgreementError, OverlayError
from overlay.pinning import agreement

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from overlay.compat.store_keys import Keys


def is_distributed() -> bool:
    """Return whether there are several ranks to compare, and a store to do it through."""
    import torch.distributed as dist

    return (
        dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1 and _store() is not None
    )


def agree(
    group: Any,
    timeout: float,
    facts: Mapping[str, str],
    files: Mapping[str, str],
    account: agreement.Account | None,
) -> None:
    """Compare what this rank says of itself with all ranks of a group. See `overlay.agree`.

    The first rank of the group then says in the log that they agree, and what all of them have.
    """
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
        me, applied = dist.get_rank(), () if account is None else account.applied
        job_log = here().job_log
        try:
            heard = compare_through(store, ranks, me, timeout, facts, files, _name(group), applied)
        except AgreementError:
            job_log.note_disagreement()
            raise
        if account is None or me != ranks[0]:
            job_log.leave_to_others()
            log.debug(f"{agreement.spans(ranks)} agree")
            return
        who = f"{len(ranks)} ranks" if len(ranks) == dist.get_world_size() else agreement.spans(ranks)
        everything = account.replace(applied=tuple(sorted(frozenset().union(*heard))))
        job_log.say_agreed(f"{who} agree: {everything.sentence(frozenset.intersection(*heard))}")


def _name(group: Any) -> str:
    """Return what torch calls a process group: the same on all its ranks, which meet by it."""
    from torch.distributed import distributed_c10d as c10d

    # By this table and not as an attribute, which groups that somebody has wrapped need not have.
    names: dict[Any, str] = dict(c10d._world.pg_names)  # noqa: SLF001 -- no other way
    return str(names.get(group or c10d.GroupMember.WORLD, ""))


def _store() -> Any:
    from torch.distributed.distributed_c10d import _get_default_store

    try:
        return _get_default_store()
    except (AttributeError, ValueError):  # without a process group
        return None


def compare_through(  # noqa: D417 -- what is not told here is as in `agree`
    store: Any,
    ranks: Sequence[int],
    me: int,
    timeout: float,
    facts: Mapping[str, str],
    files: Mapping[str, str],
    name: str = "",
    applied: Iterable[str] = (),
) -> set[frozenset[str]]:
    """Take part in one comparison, and return what this rank has applied, on the first what each has.

    Raises `AgreementError`.

    Args:
        store: A store that all ranks share. It may have been used for other groups and by other processes.
        ranks: All ranks of the group, the first of which compares.
        me: This rank.
        timeout: Seconds to wait for a rank that does not come.
        name: What tells this group from others of the same ranks.
        applied: Ids of the patches that this rank has applied so far.
    """
    key = sha256(repr([name, *ranks]).encode()).hexdigest()[:16]
    talk = Talk(store, f"overlay/agree/{key}", ranks, applied)

    def take_part() -> str:
        first = me == ranks[0]
        return talk.lead(facts, files, timeout) if first else talk.follow(me, facts, files, timeout)

    try:
        report = _watched(take_part, talk.keys)
    except RuntimeError as error:
        raise AgreementError(f"the ranks could not be compared: their store failed: {error}") from error
    if report:
        raise AgreementError(report)
    return talk.applied


def _watched(take_part: Callable[[], str], keys: Keys) -> str:
    """Return what a function returns that talks to a store. Raises `RuntimeError` if the store does not.

    What torch does when a store stops to answer without its connection breaking (a machine that is frozen, a
    network that has lost it) is to wait without end. So it waits in a thread of its own, which is left to
    itself then.
    """
    done: list[str] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(take_part())
        except BaseException as error:  # noqa: BLE001 -- raised where it is waited for
            failed.append(error)

    thread = Thread(target=run, name="overlay-agree", daemon=True)
    thread.start()
    while thread.is_alive():
        left = keys.due - time.monotonic()
        if left <= 0:
            raise RuntimeError(f"it has not answered for {PATIENCE:g} s longer than it was asked to wait")
        thread.join(left)
    if failed:
        raise failed[0]
    return done[0]
