"""`overlay lock`: writes what is decided here into a file, to which `OVERLAY_PIN` holds later processes."""

from __future__ import annotations

import os

from overlay.desk.output import EXIT_LOUD, EXIT_OK, add_selection, say, show
from overlay.errors import LockError, SelectionError
from overlay.model import settings
from overlay.model.record import TYPE_CHECKING, Record
from overlay.model.text import wrap
from overlay.records import lockfile
from overlay.records.lock import WRITTEN, compare, facts, with_digest
from overlay.verdict import LOUD

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from overlay.records.lock import Lock
    from overlay.runtime.engine import Engine


class Locked(Record):
    """A lock, and how it compares."""

    file: str
    digest: str
    #: In what it differs from what is here, a line each.
    differences: tuple[str, ...]
    #: Ids of patches that are locked although they cannot be applied.
    loud: tuple[str, ...]
    #: Whether the file was written now, and what is another thing in it than before.
    written: bool
    changed: tuple[str, ...]


def add(add_command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command to a parser."""
    lock = add_command("lock", _lock, "record the verdicts in overlay.lock, to which OVERLAY_PIN holds a job")
    lock.add_argument("--file", metavar="PATH", default="overlay.lock", help="default: overlay.lock")
    what = lock.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="write nothing, and say what differs")
    text = "write over an existing lock; with ID, lock this patch anew and no other (repeatable)"
    what.add_argument("--update", metavar="ID", nargs="?", const="", action="append", help=text)
    add_selection(lock, "what to lock (default: OVERLAY_PATCHES, or all)")


def _lock(engine: Engine, arguments: argparse.Namespace) -> int:
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
    before = facts(old) if written and old is not None else facts(new)
    found = Locked(
        file=arguments.file,
        digest=new["digest"],
        differences=tuple(compare(facts(new), facts(here))),
        loud=tuple(patch["id"] for patch in new["patch"] if patch["verdict"] in LOUD),
        written=written,
        changed=tuple(compare(before, facts(new), WRITTEN)),
    )
    show(arguments, found.to_dict(), lambda: _text(found))
    if found.differences and not (written or arguments.check):
        say(
            f"{arguments.file} exists, so nothing was written: `overlay lock --update` overwrites it, "
            "--update ID locks one patch anew"
        )
    asked = set(found.loud).difference(engine.chosen(arguments.patches).companions)
    return EXIT_LOUD if found.differences or (asked and not arguments.check) else EXIT_OK


def _text(found: Locked) -> str:
    lines = [f"{found.file}  sha256:{found.digest}"]
    if found.written:
        lines.append("written; changed in it:" if found.changed else "written")
    lines += [wrap(line, "    ", first="  ") for line in found.changed]
    lines.append("differs from this environment:" if found.differences else "matches this environment")
    lines += [wrap(line, "    ", first="  ") for line in found.differences]
    lines += [f"locked although it cannot be applied: {name}" for name in found.loud]
    return "\n".join(lines)


def _existing(arguments: argparse.Namespace, ids: list[str]) -> Lock | None:
    """Return the lock that exists, or `None`. Raises `LockError` if it is damaged and may not be replaced."""
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
        raise LockError(f"{error} (nothing was written: `overlay lock --update` overwrites it)") from error


def _updated(old: Lock, here: Lock, ids: list[str]) -> Lock:
    """Return a lock with the entries of some patches as they are here, and all else as it was."""
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
