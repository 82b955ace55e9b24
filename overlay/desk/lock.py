"""`overlay lock`: writes what is decided here into a file, to which `OVERLAY_PIN` holds later processes."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable

from overlay.desk.output import EXIT_LOUD, EXIT_OK, add_selection, say, show
from overlay.errors import LockError
from overlay.model.text import wrap
from overlay.records import lock as lockfile
from overlay.records.lock import HELD, LOCK_FILE, WRITTEN, compare, facts
from overlay.runtime.engine import Engine
from overlay.verdict import LOUD

#: How a lock begins, without blanks and digits: this kind, and the one that was TOML.
_STARTS = (b'{"format":,"overlay":{', b"#Writtenby`overlaylock`")


def add(add_command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command to a parser."""
    lock = add_command("lock", _lock, f"write {LOCK_FILE}, which OVERLAY_PIN enforces")
    lock.add_argument("--file", metavar="PATH", default=LOCK_FILE, help=f"the lock (default: {LOCK_FILE})")
    what = lock.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="write nothing, and say what differs")
    what.add_argument("--update", action="store_true", help="replace an existing lock")
    add_selection(lock, "what to lock (default: OVERLAY_PATCHES, or all)")


def _lock(engine: Engine, arguments: argparse.Namespace) -> int:
    here = engine.lock(arguments.patches)
    old = _existing(arguments)
    written = arguments.update or old is None  # with --check there is one, or an error
    new = here if written or old is None else old
    if written:
        try:
            lockfile.save(arguments.file, new)
        except OSError as error:
            raise LockError(f"the lock cannot be written: {error}") from error
    lines = compare(facts(old or here), facts(here), WRITTEN if written else HELD)
    loud = [patch["id"] for patch in new["patch"] if patch["verdict"] in LOUD]
    if written:
        said = "written; changed in it:" if lines else "written"
    else:
        said = "differs from this environment:" if lines else "matches this environment"
    text = [
        f"{arguments.file}  sha256:{new['digest']}",
        said,
        *(wrap(line, "    ", first="  ") for line in lines),
        *(f"locked although it cannot be applied: {name}" for name in loud),
    ]
    if not written and lines and all(line.startswith(HELD[2:]) for line in lines):
        text.append(f"--patches '{lockfile.selection_of(new, engine.known())}' is what was locked")
    data = {
        "file": arguments.file,
        "digest": new["digest"],
        "differences": [] if written else lines,
        "loud": loud,
        "written": written,
        "changed": lines if written else [],
    }
    show(arguments, data, lambda: "\n".join(text))
    differs = bool(lines) and not written
    if differs and not arguments.check:
        say(f"{arguments.file} exists, so nothing was written: --update overwrites it")
    asked = set(loud).difference(engine.chosen(arguments.patches).companions)
    return EXIT_LOUD if differs or (asked and not arguments.check) else EXIT_OK


def _existing(arguments: argparse.Namespace) -> lockfile.Lock | None:
    """Return the lock that exists, or `None`. Raises `LockError` if it is damaged and may not be replaced."""
    # A terminal or a pipe has nothing to lose.
    if not arguments.check and not os.path.isfile(arguments.file):
        return None
    try:
        return lockfile.read(arguments.file, [arguments.patches] if arguments.patches else [])
    except LockError as error:
        if arguments.check:
            raise
        if not _was_lock(arguments.file):
            raise LockError(
                f"{arguments.file} is no lock, so nothing was written: name another file"
            ) from error
        if arguments.update:  # what is damaged is written over all the same
            return None
        raise LockError(f"{error} (nothing was written: --update overwrites it)") from error


def _was_lock(path: str) -> bool:
    """Return whether a file that cannot be read as a lock begins as one, of this overlay or of another."""
    try:
        with open(path, "rb") as file:
            start = file.read(200)
    except OSError:
        return True  # what is wrong with it is said when it is written
    start = re.sub(rb"\s|\d", b"", start)
    return any(start.startswith(one) or one.startswith(start) for one in _STARTS)
