"""Started with any Python that overlay runs on: tries short orders on the fake upstream, and says what came.

Argument: a folder to write in. Prints, as JSON, what each order came to (`order_world`).
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import sys
from pathlib import Path

from fake_upstream import tables
from forked import in_a_child
from order_world import Subject, what_came, write_upstream

from overlay.patch import Patch
from overlay.runtime.engine import Engine


def main(folder: Path) -> None:
    """Try every order of up to two steps, and every fifth of three."""
    os.environ["OVERLAY_LOG"] = "off"
    sys.dont_write_bytecode = True
    patch = write_upstream(folder)
    sys.path.insert(0, str(folder))
    subject = Subject({patch.id: patch})
    words = ["".join(word) for length in (1, 2, 3) for word in itertools.product("IEDRAX", repeat=length)]
    orders = [word for number, word in enumerate(words) if len(word) < 3 or number % 5 == 0]
    found = {order: what_came(order, subject)[0] for order in orders}
    found["ledger"] = str(in_a_child(lambda: late(patch))["state"])
    sys.stdout.write(json.dumps(found) + "\n")


def late(patch: Patch) -> dict[str, str]:
    """Enable after the import, when the holders of originals are looked for, and return the ledger's word."""
    importlib.import_module("fakeup.core")
    engine = Engine(lambda: {patch.id: patch}, table=tables())
    engine.enable()
    (status,) = engine.status().patches
    return {"state": f"{status.state} {status.reason}"}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
