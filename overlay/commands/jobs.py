"""The commands for whole jobs: `run`, `doctor`, `lock` and `packs`."""

from __future__ import annotations

import os
import sys

from overlay.base import settings
from overlay.commands import tables
from overlay.errors import LockError, SelectionError
from overlay.verdict import LOUD

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from typing import Any

    from overlay.enabling.engine import Engine
    from overlay.pinning.lock import Lock

#: Exit codes as in `overlay.cli`, and those of a shell for a command that cannot be started.
EXIT_OK, EXIT_DIFFERS, EXIT_USAGE = 0, 1, 2
EXIT_NO_COMMAND, EXIT_NOT_FOUND = 126, 127


def add(
    commands: Any, add_command: Callable[..., argparse.ArgumentParser], show: Callable[..., None]
) -> None:
    """Add the commands to a parser. `show` prints data as JSON or as a table."""
    text = "arm every Python process of a command: run -- torchrun ..."
    run = commands.add_parser("run", help=text, description=text)
    run.add_argument("--patches", metavar="SELECTION", help="sets OVERLAY_PATCHES")
    run.add_argument("--strict", action="store_true", help="sets OVERLAY_STRICT")
    run.add_argument("--pin", metavar="LOCK", help="sets OVERLAY_PIN")
    run.add_argument("words", nargs="+", metavar="COMMAND", help="after --, with its arguments")
    run.set_defaults(command=_run)

    doctor = add_command("doctor", _doctor, "say whether worker processes are armed here, and why not")
    packs = add_command("packs", _packs, "list the packs that are installed, without importing them")
    lock = add_command("lock", _lock, "write overlay.lock: what is decided here, to be held by OVERLAY_PIN")
    lock.add_argument("--file", metavar="PATH", default="overlay.lock", help="default: overlay.lock")
    what = lock.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="write nothing, and say what differs")
    what.add_argument("--update", metavar="ID", action="append", help="lock this patch anew and no other")
    lock.add_argument(
        "--patches", metavar="SELECTION", help="what to lock (default: OVERLAY_PATCHES, or all)"
    )
    for parser in (doctor, packs, lock):
        parser.set_defaults(show=show)


def _run(_: Engine, arguments: argparse.Namespace) -> int:
    """Become the command, with the environment by which start-up files arm."""
    from overlay.arming.doctor import diagnose

    environ = {**os.environ, "OVERLAY": "1"}
    if arguments.patches is not None:
        environ["OVERLAY_PATCHES"] = arguments.patches
    if arguments.strict:
        environ["OVERLAY_STRICT"] = "1"
    pin = arguments.pin if arguments.pin is not None else settings.pin(environ)
    if pin:
        # Workers run in other folders.
        environ["OVERLAY_PIN"] = pin if pin.startswith(settings.DIGEST_PREFIX) else os.path.abspath(pin)
    settings.pin(environ)
    found = diagnose()
    if not found.active:
        _say(f"nothing is started, because no process would be armed: {found.reason}")
        return EXIT_DIFFERS
    arguments.progress.close()
    try:
        os.execvpe(arguments.words[0], arguments.words, environ)  # noqa: S606 -- the command that was asked for
    except FileNotFoundError:
        _say(f"{arguments.words[0]}: command not found")
        return EXIT_NOT_FOUND
    except OSError as error:
        _say(f"{arguments.words[0]} cannot be started: {error}")
        return EXIT_NO_COMMAND


def _say(text: str) -> None:
    sys.stderr.write(f"overlay: {text}\n")


def _doctor(_: Engine, arguments: argparse.Namespace) -> int:
    from overlay.arming.doctor import diagnose

    found = diagnose()
    arguments.show(arguments, found.to_dict(), lambda: tables.diagnosis(found))
    return EXIT_OK if found.active else EXIT_DIFFERS


def _packs(_: Engine, arguments: argparse.Namespace) -> int:
    from overlay.catalogue.packs import installed

    found = installed()
    wanted = settings.packs()
    arguments.show(
        arguments,
        [{**pack.to_dict(), "loaded": pack.name in wanted} for pack in found],
        lambda: tables.packs(found, wanted),
    )
    return EXIT_OK


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
    arguments.show(
        arguments,
        {"file": arguments.file, "digest": new["digest"], "differences": different, "loud": loud},
        lambda: tables.lock(arguments.file, new["digest"], different, loud),
    )
    asked = set(loud).difference(engine.chosen(arguments.patches).companions)
    return EXIT_DIFFERS if different or (asked and not arguments.check) else EXIT_OK


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
