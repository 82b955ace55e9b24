"""What came of this run: some lines in the log at its end, and the ledger in a folder.

Nothing begins before a module is imported that a patch is for. A process that is killed says nothing at its
end: it leaves the ledger as a thread wrote it last, if there is a folder for it.

The ranks of a job say the same of themselves, but for their numbers. So a folder has one file for each ledger
that differs, named by its digest, and for each process a small one:

    ledger-DIGEST.json        the ledger, without the process and its figures
    process-HOST-PID-ID.json  rank, digest of the ledger, and the figures: `changed`, and what is not zero

A file gets its name when it is complete, so readers need no lock. Only the process that wrote a file ever
changes it.
"""

from __future__ import annotations

import _thread
import atexit
import os

from overlay import log
from overlay.model.rank import host, is_first, number, rank

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from overlay.ledger import Status

#: Seconds from one look at the figures to the next, at first and at most. They double each time. So a run
#: that is killed loses at most what it counted in its second half, and never more than ten minutes of that.
FIRST, LAST = 5.0, 600.0

#: The most lines that a process says of itself at its end.
MOST_LINES = 5

#: The most patches that are named of those that had nothing to do: a user has likely selected so few by id.
_NAMED = 3

#: How names of files begin, and end.
LEDGER, PROCESS, ENDING = "ledger-", "process-", ".json"
#: Digits of the digest that names a ledger.
_DIGITS = 32

#: Returns the state of this process, and waits for nothing. The engine sets it.
tell: Callable[[], Status] | None = None
#: The id of the process in which the run began: a fork has another one.
_begun = 0
_file: LedgerFile | None = None
#: Held by who writes the ledger: at the end of the process it is written for the last time.
_writes = _thread.allocate_lock()
_has_ended = False
#: Where the ledger goes, as it was named when the run began: a job may go to another folder after that.
_folder = ""
#: The digests of the code that this process runs, as it was when the run began.
_code: dict[str, str] = {}


def begin() -> None:
    """Prepare for the end of this process. Called after the import of a module that a patch is for."""
    global _begun, _folder, _code  # noqa: PLW0603 -- of the process
    if _begun or tell is None:
        return
    _begun = os.getpid()
    atexit.register(end)
    if os.environ.get("OVERLAY_LEDGER_DIR"):
        from overlay.source.registry import code_in_use

        _folder = os.path.abspath(os.environ["OVERLAY_LEDGER_DIR"])
        _code = code_in_use()
        _start_watching()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_start_watching)


def end() -> None:
    """Say what the patches did, on the first rank, and write the ledger. Raises nothing."""
    global _has_ended  # noqa: PLW0603 -- of the process
    try:
        with _writes:
            _has_ended = True
        status = _told()
        if status is None:
            return
        if is_first():
            for line in lines(status, is_fork=os.getpid() != _begun):
                log.info(line)
        _write(status, ended=True)
    except Exception as error:  # noqa: BLE001 -- a job that has ended well must not end otherwise
        log.debug(f"the end of the run could not be told: {error!r}")


def lines(status: Status, *, is_fork: bool = False) -> list[str]:
    """Return what this process says of itself at its end: what was changed, then what had nothing to do.

    A patch that had nothing to do here may have had work on other ranks, or in the parent of this fork.
    """
    from overlay.effect import told

    counted = [one for one in status.patches if one.effect]
    reached = [(one.patch, one.effect) for one in counted if one.effect and one.effect.reached]
    # Patches that changed something come first, those that do so in every job last.
    reached.sort(key=lambda pair: ("calls" not in pair[1].values, not pair[1].values.get("changed")))
    where = "in this process" if rank() is None else f"on rank {rank()}"
    shown = reached if len(reached) < MOST_LINES else reached[: MOST_LINES - 2]
    found = [f"{where}: {patch} {told(effect)}" for patch, effect in shown]
    if left := len(reached) - len(shown):
        has = "the ledger has" if _folder else "OVERLAY_LEDGER_DIR keeps"
        found.append(f"{where}: {left} more patches had work; {has} their figures")
    # Not of an incomplete patch: calls of an original that somebody still holds are not counted.
    idle = [one.patch for one in counted if one.effect and not one.effect.reached and one.was_whole]
    if idle and not is_fork:
        who = ", ".join(idle) if len(idle) <= _NAMED else f"{len(idle)} patches"
        found.append(f"{where}: applied, but had nothing to do: {who}")
    return found


def _told() -> Status | None:
    """Return the state of this process, `None` if it is not worth a word, as of a fork that did nothing."""
    status = None if tell is None else tell()
    if status is None or not status.patches:
        return None
    did = any(patch.effect is not None and patch.effect.reached for patch in status.patches)
    return status if did or os.getpid() == _begun else None


def _start_watching() -> None:
    global _writes, _has_ended
    import threading
    from contextlib import suppress

    from overlay.model.signals import blocked

    _writes, _has_ended = _thread.allocate_lock(), False  # in a fork, nobody would release it
    with suppress(RuntimeError), blocked():  # no more threads, or the interpreter is ending
        threading.Thread(target=_watch, name="overlay-ledger", daemon=True).start()


def _watch() -> None:
    """Write the ledger again whenever figures may have changed, from a thread that nothing waits for."""
    import time

    pause = FIRST
    while True:
        time.sleep(pause)
        pause = min(2 * pause, LAST)
        try:
            with _writes:
                if _has_ended:
                    return
                if (status := _told()) is not None:
                    _write(status, ended=False)
        except Exception as error:  # noqa: BLE001 -- no job may fail because of its ledger
            log.debug(f"the ledger could not be written: {error!r}")


def _write(status: Status, *, ended: bool) -> None:
    global _file  # noqa: PLW0603 -- of the process
    folder = _folder or os.environ.get("OVERLAY_LEDGER_DIR")
    if not folder:
        return
    if _file is None or _file.pid != os.getpid():
        _file = LedgerFile(folder)
    _file.write(status.replace(code=_code), ended=ended)


class LedgerFile:
    """The files of this process in a folder."""

    def __init__(self, folder: str) -> None:
        self.pid = os.getpid()
        self._folder = os.path.abspath(folder)
        where = "".join(one if one.isalnum() else "-" for one in host())
        # Another node or container may have the same process id, and even the same host name.
        name = f"{PROCESS}{where}-{self.pid}-{os.urandom(4).hex()}{ENDING}"
        self._path = os.path.join(self._folder, name)
        self._written = b""
        self._warned = False

    def write(self, status: Status, *, ended: bool) -> None:
        """Write what is not there yet. An error is logged once, and never raised."""
        from hashlib import sha256

        from overlay.model.whole import write_whole

        ledger, figures = _shared_and_own(status)
        shared = _encoded(ledger)
        digest = sha256(shared).hexdigest()[:_DIGITS]
        own = _encoded(
            {
                "ledger": digest,
                "rank": rank(),
                "world": number("WORLD_SIZE"),
                "host": host(),
                "pid": self.pid,
                "ended": ended,
                "effects": figures,
            }
        )
        try:
            os.makedirs(self._folder, exist_ok=True)
            shared_path = os.path.join(self._folder, f"{LEDGER}{digest}{ENDING}")
            if not os.path.exists(shared_path):
                write_whole(shared_path, shared)
            if own != self._written or not os.path.exists(self._path):
                write_whole(self._path, own)
                self._written = own
        except OSError as error:
            if not self._warned:
                self._warned = True
                log.warning(f"the ledger cannot be written to {self._folder}: {error}")


def _shared_and_own(status: Status) -> tuple[dict[str, Any], dict[str, dict[str, int | float]]]:
    """Return the ledger without what is this process's own, and by patch the figures of this process."""
    figures = {}
    patches = []
    for patch in status.patches:
        if patch.effect is not None:
            if patch.effect.reached:
                # Keep `changed` even at 0: without it, the number is unknown (on a device, not fetched).
                figures[patch.patch] = {
                    name: value for name, value in patch.effect.values.items() if value or name == "changed"
                }
            patch = patch.replace(effect=patch.effect.replace(values={}))  # noqa: PLW2901 -- without them
        patches.append(patch)
    ledger = status.replace(patches=tuple(patches)).to_dict()
    del ledger["pid"]
    return ledger, figures


def _encoded(data: object) -> bytes:
    import json

    return (json.dumps(data, sort_keys=True) + "\n").encode()
