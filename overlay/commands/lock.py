"""`overlay lock`: what is decided here, in a file that `OVERLAY_PIN` holds later processes to."""

from __future__ import annotations

from overlay.base import settings
from overlay.commands import tables
from overlay.commands.output import EXIT_LOUD, EXIT_OK, show
from overlay.errors import LockError, SelectionError
from overlay.verdict import LOUD

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from overlay.enabling.engine import Engine
    from overlay.pinning.lock import Lock


def add(add_command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command to a parser."""
    lock = add_command("lock", _lock, "write overlay.lock: what is decided here, to be held by OVERLAY_PIN")
    lock.add_argument("--file", metavar="PATH", default="overlay.lock", help="default: overlay.lock")
    what = lock.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="write nothing, and say what differs")
    what.add_argument("--update", metavar="ID", action="append", help="lock this patch anew and no other")
    lock.add_argument(
        "--patches", metavar="SELECTION", help="what to lock (default: OVERLAY_PATCHES, or all)"
    )


def _lock(engine: Engine, arguments: argparse.Namespace) -> int:
    from overlay.pinning import lockfile
    from overlay.pinning.lock import differences, facts

    here = engine.lock(arguments.patches)
    old = lockfile.read(arguments.file) if arguments.check or arguments.update else None
    new = here if old is None else _updated(old, here, arguments.update or ())
    if not arguments.check:
        try:
            lockfile.save(arguments.file, new)
        except OSError as error:
            raise LockError(f"the lock cannot be written: {error}") from error
    different = differences(facts(new), facts(here))
    loud = [patch["id"] for patch in new["patch"] if patch["verdict"] in LOUD]
    show(
        arguments,
        {"file": arguments.file, "digest": new["digest"], "differences": different, "loud": loud},
        lambda: tables.lock(arguments.file, new["digest"], different, loud),
    )
    asked = set(loud).difference(engine.chosen(arguments.patches).companions)
    return EXIT_LOUD if different or (asked and not arguments.check) else EXIT_OK


def _updated(old: Lock, here: Lock, ids: list[str] | tuple[()]) -> Lock:
    """Return a lock with the entries of some patches as they are here, and all else as it was."""
    from overlay.pinning.lock import with_digest

    entries = {patch["id"]: patch for patch in old["patch"]}
    fresh = {patch["id"]: patch for patch in here["patch"]}
    for name in ids:
        if name not in entries and name not in fresh:
            msg = (
                f"--update: {name!r} is neither locked nor selected; {settings.nearest(name, sorted(fresh))}"
            )
            raise SelectionError(msg)
        entries.pop(name, None)
        if name in fresh:
            entries[name] = fresh[name]
    return with_digest({**old, "patch": [entries[name] for name in sorted(entries)]})
