"""`overlay lock`: writes what is decided here into a file, to which `OVERLAY_PIN` holds later processes."""

from __future__ import annotations

import os

from overlay.desk import tables
from overlay.desk.output import EXIT_LOUD, EXIT_OK, SELECTION, say, show
from overlay.errors import LockError, SelectionError
from overlay.model import settings
from overlay.verdict import LOUD

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from overlay.records.lock import Lock
    from overlay.runtime.engine import Engine


def add(add_command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command to a parser."""
    lock = add_command("lock", _lock, "write overlay.lock: what is decided here, to be held by OVERLAY_PIN")
    lock.add_argument("--file", metavar="PATH", default="overlay.lock", help="default: overlay.lock")
    what = lock.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="write nothing, and say what differs")
    what.add_argument(
        "--update",
        metavar="ID",
        nargs="?",
        const="",
        action="append",
        help="write over an existing lock; with ID, lock this patch anew and no other (repeatable)",
    )
    lock.add_argument(
        "--patches",
        metavar="SELECTION",
        help=f"what to lock (default: OVERLAY_PATCHES, or all): {SELECTION}",
    )


def _lock(engine: Engine, arguments: argparse.Namespace) -> int:
    from overlay.records import lockfile
    from overlay.records.lock import changes, differences, facts

    here = engine.lock(arguments.patches)
    ids = [name for name in arguments.update or () if name]
    old = _existing(arguments, ids)
    written = not arguments.check and (old is None or arguments.update is not None)
    new = here
    if old is not None and (ids or not written):
        new = _updated(old, here, ids) if ids else old
    if written:
        try:
            lockfile.save(arguments.file, new)
        except OSError as error:
            raise LockError(f"the lock cannot be written: {error}") from error
    changed = changes(facts(old), facts(new)) if written and old is not None else []
    different = differences(facts(new), facts(here))
    loud = [patch["id"] for patch in new["patch"] if patch["verdict"] in LOUD]
    data = {
        "file": arguments.file,
        "digest": new["digest"],
        "differences": different,
        "loud": loud,
        "written": written,
        "changed": changed,
    }
    show(arguments, data, lambda: tables.lock(data))
    if different and not (written or arguments.check):
        say(
            f"{arguments.file} is there, and nothing was written: `overlay lock --update` writes over it, "
            "--update ID locks one patch anew"
        )
    asked = set(loud).difference(engine.chosen(arguments.patches).companions)
    return EXIT_LOUD if different or (asked and not arguments.check) else EXIT_OK


def _existing(arguments: argparse.Namespace, ids: list[str]) -> Lock | None:
    """Return the lock that exists, or `None`. Raises `LockError` if it is damaged and may not be replaced."""
    from overlay.records import lockfile

    needed = arguments.check or ids
    if not needed and not os.path.isfile(arguments.file):  # a terminal or a pipe has nothing to lose
        return None
    try:
        return lockfile.read(arguments.file)
    except LockError as error:
        if needed:
            raise
        if arguments.update is not None:  # what is damaged is written over all the same
            return None
        raise LockError(f"{error} (nothing was written: `overlay lock --update` writes over it)") from error


def _updated(old: Lock, here: Lock, ids: list[str]) -> Lock:
    """Return a lock with the entries of some patches as they are here, and all else as it was."""
    from overlay.records.lock import with_digest

    entries = {patch["id"]: patch for patch in old["patch"]}
    fresh = {patch["id"]: patch for patch in here["patch"]}
    for name in ids:
        if name not in entries and name not in fresh:
            near = settings.nearest(name, sorted(fresh))
            raise SelectionError(f"--update: {name!r} is neither locked nor selected; {near}")
        entries.pop(name, None)
        if name in fresh:
            entries[name] = fresh[name]
    return with_digest({**old, "patch": [entries[name] for name in sorted(entries)]})
