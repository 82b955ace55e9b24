"""Runs contracts in forks of one process, in which what takes long to import is imported once."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable
from importlib import import_module
from inspect import isfunction
from multiprocessing import get_context
from multiprocessing.connection import Connection

from overlay.desk.prove.prove import CRASHED, HOLDS, LONGEST, NO_END, RAISES, WRONG
from overlay.patch import Contract
from overlay.source.registry import contract_of, module_of

#: Seconds after its time in which a child ends by itself if its parent is gone.
_GRACE = 10


def import_before(contracts: Iterable[Contract]) -> None:
    """Import what contracts name as slow. What cannot be imported, they say themselves."""
    for name in dict.fromkeys(name for contract in contracts for name in contract.before):
        with contextlib.suppress(ImportError):
            import_module(name)


def defect_of(patch: str) -> Callable[[str], str]:
    """Return what looks for the defect of a patch that has a contract.

    It is the function `wrong` beside the contract, if there is one, as a cure of upstream's need not give all
    that the patch promises; else all of the contract.
    """
    contract = contract_of(patch)
    found = getattr(import_module(f"{module_of(patch)}.contract"), "wrong", None)
    return found if isfunction(found) else contract.check  # type: ignore[union-attr]


def forked(work: Callable[[], str], seconds: float) -> tuple[str, str]:
    """Return the outcome of some work in a fork, and what was said.

    Whatever is left of its process group is killed. This process must have no threads that hold a lock.

    `work`: returns what is wrong, empty if nothing is. `seconds`: until it is killed.
    """
    context = get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    child = context.Process(target=_be_the_child, args=(work, writer, seconds))
    child.start()
    writer.close()
    found = None
    try:
        # Not the end of the pipe, which what the child has started may hold open.
        if not reader.poll(seconds):
            return NO_END, f"not within {seconds:g} s"
        with contextlib.suppress(EOFError):
            found = reader.recv()
        child.join(_GRACE)
    finally:
        reader.close()
        with contextlib.suppress(OSError, TypeError):
            os.killpg(child.pid, signal.SIGKILL)  # type: ignore[arg-type]
        child.kill()  # which may not have come to make its group
        child.join()
    return found or (CRASHED, f"its process ended with {child.exitcode}, without an answer")


def _be_the_child(work: Callable[[], str], writer: Connection, seconds: float) -> None:
    """Answer, and end without what else this interpreter would do at its end."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.setpgid(0, 0)  # what it starts is killed with it
    signal.alarm(int(seconds) + 2 * _GRACE)
    try:
        wrong = work()
        writer.send((WRONG, wrong[:LONGEST]) if wrong else (HOLDS, ""))
    except Exception as error:  # noqa: BLE001 -- it is said
        writer.send((RAISES, f"{type(error).__name__}: {error}"[:LONGEST]))
    except BaseException:  # noqa: BLE001 -- `SystemExit` for one: nothing was said
        os._exit(1)
    os._exit(0)
