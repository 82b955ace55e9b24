"""`overlay lock`: writes what is decided here into a file, to which `OVERLAY_PIN` holds later processes."""

from __future__ import annotations

import os

from overlay.desk.output import EXIT_LOUD, EXIT_OK, add_selection, say, show
from overlay.errors import LockError, SelectionError
from overlay.model import settings
from overlay.model.record import TYPE_CHECKING, Record
from overlay.model.text import wrap
from overlay.records import lockfile
from overlay.records.lock import changes, differences, different, facts, shown, with_digest
from overlay.verdict import LOUD

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from overlay.records.lock import Lock
    from overlay.runtime.engine import Engine


class Locked(Record):
    """A lock, and how it compares."""

    file: str
    digest: str
    #: In what it differs from what is here, a sentence each.
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
        differences=tuple(differences(facts(new), facts(here))),
        loud=tuple(patch["id"] for patch in new["patch"] if patch["verdict"] in LOUD),
        written=written,
        changed=tuple(changes(before, facts(new))),
    )
    show(arguments, found.to_dict(), lambda: _text(found, before, facts(new), facts(here)))
    if found.differences and not (written or arguments.check):
        say(
            f"{arguments.file} exists, so nothing was written: `overlay lock --update` overwrites it, "
            "--update ID locks one patch anew"
        )
    asked = set(found.loud).difference(engine.chosen(arguments.patches).companions)
    return EXIT_LOUD if found.differences or (asked and not arguments.check) else EXIT_OK


def _text(
    found: Locked, before: Mapping[str, str], locked: Mapping[str, str], here: Mapping[str, str]
) -> str:
    lines = [f"{found.file}  sha256:{found.digest}"]
    if found.changed:
        lines += ["written; changed in it:", *_changes(before, locked, ("was", "is", "added", "dropped"))]
    elif found.written:
        lines.append("written")
    lines.append("differs from this environment:" if found.differences else "matches this environment")
    sides = ("selected here and not locked", "locked and not selected here")
    lines += _changes(locked, here, ("locked", "here", *sides))
    lines += [f"locked although it cannot be applied: {name}" for name in found.loud]
    return "\n".join(lines)


def _changes(one: Mapping[str, str], other: Mapping[str, str], words: Sequence[str]) -> list[str]:
    """Return the facts that differ as lines; all patches that are on one side only share a line."""
    was, now, more, less = words
    names = different([one, other])
    lines = []
    for head, there, lacking in ((more, other, one), (less, one, other)):
        ids = [
            name for name in names if name.endswith(": revision") and name in there and name not in lacking
        ]
        names = [name for name in names if name not in ids]
        said = ", ".join(name.removesuffix(": revision") for name in ids)
        lines += [wrap(f"{head}: {said}", "    ", first="  ")] if ids else []
    both = [
        wrap(f"{name}: {was} {shown(one.get(name))}, {now} {shown(other.get(name))}", "    ", first="  ")
        for name in names
    ]
    return [*both, *lines]


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
