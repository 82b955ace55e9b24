"""The ledger of a process on disk: a file that it shares with other ranks, and one of its own.

The ranks of a job say the same of themselves, but for their numbers. So a folder has one file for each ledger
that differs, named by its digest, and for each process a small one:

    ledger-DIGEST.json        the ledger, without the process and its figures
    process-HOST-PID-ID.json  rank, digest of the ledger, and the figures: `changed`, and what is not zero

A file gets its name when it is complete, so readers need no lock. Only the process that wrote a file ever
changes it.
"""

from __future__ import annotations

import json
import os

from overlay import log
from overlay.model.rank import host, number, rank
from overlay.model.record import TYPE_CHECKING
from overlay.model.whole import write_whole

if TYPE_CHECKING:
    from typing import Any

    from overlay.ledger import Status

#: How names begin, and end.
LEDGER, PROCESS, ENDING = "ledger-", "process-", ".json"
#: Digits of the digest that names a ledger.
_DIGITS = 32


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

        ledger, figures = shared_and_own(status)
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


def shared_and_own(status: Status) -> tuple[dict[str, Any], dict[str, dict[str, int | float]]]:
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
    return (json.dumps(data, sort_keys=True) + "\n").encode()
