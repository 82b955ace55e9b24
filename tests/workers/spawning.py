"""Enabled below its block for `__main__` only: says whether what it starts is patched. Prints JSON."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from concurrent.futures import ThreadPoolExecutor

from probe import in_process, probe


def pool(method: str) -> int:
    with multiprocessing.get_context(method).Pool(2) as made:
        return sum(made.map(probe, range(4))) // 4


if __name__ == "__main__":
    import overlay

    if "early" in sys.argv:
        in_process("forkserver")
    before = dict(os.environ)
    overlay.enable(strict="strict" in sys.argv)
    found = {f"{kind.__name__} {method}": kind(method) for kind in (in_process, pool) for method in
             ("spawn", "forkserver")}  # fmt: skip
    if "threads" in sys.argv:
        with ThreadPoolExecutor(8) as threads:
            found["threads"] = min(threads.map(in_process, ["spawn"] * 8))
    started = {name for name in os.environ if name.startswith("OVERLAY")} - {"OVERLAY_SAID"}
    found["environment kept"] = started == {name for name in before if name.startswith("OVERLAY")}
    overlay.disable()
    found["after disable"] = in_process("spawn")
    sys.stdout.write("\n" + json.dumps(found) + "\n")
