"""What came of this run: some lines in the log at its end, and the ledger in a folder.

Nothing begins before a module is imported that a patch is for. A process that is killed says nothing at its
end: it leaves the ledger as a thread wrote it last, if there is a folder for it.
"""

from __future__ import annotations

import os

from overlay import log
from overlay.model.rank import is_first, rank

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from overlay.ledger import Status
    from overlay.records.files import LedgerFile

#: Seconds from one look at the figures to the next, at first and at most. They double each time. So a run
#: that is killed loses at most what it counted in its second half, and never more than ten minutes of that.
FIRST, LAST = 5.0, 600.0

#: The most lines that a process says of itself at its end.
MOST_LINES = 5

#: The most patches that are named of those that had nothing to do: a user has likely selected so few by id.
_NAMED = 3

#: States of a patch that was in place.
_WAS_IN_PLACE = ("applied", "incomplete", "reverted", "waiting")

#: Returns the state of this process, and waits for nothing. The engine sets it.
tell: Callable[[], Status] | None = None
#: The id of the process in which the run began: a fork has another one.
_begun = 0
_file: LedgerFile | None = None
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
    import atexit

    atexit.register(end)
    if os.environ.get("OVERLAY_LEDGER_DIR"):
        _folder = os.path.abspath(os.environ["OVERLAY_LEDGER_DIR"])
        _code = _digests()
        _start_watching()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_start_watching)


def end() -> None:
    """Say what the patches did, on the first rank, and write the ledger. Raises nothing."""
    try:
        status = None if tell is None else tell()
        if status is None or not status.patches:
            return
        is_fork = os.getpid() != _begun
        if is_fork and not _did_something(status):
            return
        if is_first():
            for line in lines(status, is_fork=is_fork):
                log.info(line)
        _write(status, ended=True)
    except Exception as error:  # noqa: BLE001 -- a job that has ended well must not end otherwise
        log.debug(f"the end of the run could not be told: {error!r}")


def lines(status: Status, *, is_fork: bool = False) -> list[str]:
    """Return what this process says of itself at its end: what was changed, then what had nothing to do.

    A patch that had nothing to do here may have had work on other ranks, or in the parent of this fork.
    """
    from overlay.effect import told

    counted = [one for one in status.patches if one.effect and one.state in _WAS_IN_PLACE]
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
    idle = [
        one.patch
        for one in counted
        if one.effect and not one.effect.reached and one.state in ("applied", "reverted")
    ]
    if idle and not is_fork:
        who = ", ".join(idle) if len(idle) <= _NAMED else f"{len(idle)} patches"
        found.append(f"{where}: applied, but had nothing to do: {who}")
    return found


def _digests() -> dict[str, str]:
    from contextlib import suppress

    from overlay.errors import OverlayError
    from overlay.source.own_code import of_pack
    from overlay.source.registry import of_overlay, wanted_packs

    with suppress(OSError, OverlayError):  # no job may fail because of its ledger
        return {
            "overlay": of_overlay(),
            **{f"pack {one.name}": of_pack(one.package) for one in wanted_packs()},
        }
    return {}


def _did_something(status: Status) -> bool:
    return any(patch.effect is not None and patch.effect.reached for patch in status.patches)


def _start_watching() -> None:
    import threading

    threading.Thread(target=_watch, name="overlay-ledger", daemon=True).start()


def _watch() -> None:
    """Write the ledger again whenever figures may have changed, from a thread that nothing waits for."""
    import time

    pause = FIRST
    while True:
        time.sleep(pause)
        pause = min(2 * pause, LAST)
        try:
            status = None if tell is None else tell()
            if status is not None and (os.getpid() == _begun or _did_something(status)):
                _write(status, ended=False)
        except Exception as error:  # noqa: BLE001 -- no job may fail because of its ledger
            log.debug(f"the ledger could not be written: {error!r}")


def _write(status: Status, *, ended: bool) -> None:
    global _file  # noqa: PLW0603 -- of the process
    folder = _folder or os.environ.get("OVERLAY_LEDGER_DIR")
    if not folder:
        return
    from overlay.records.files import LedgerFile

    if _file is None or _file.pid != os.getpid():
        _file = LedgerFile(folder)
    _file.write(status.replace(code=_code), ended=ended)
