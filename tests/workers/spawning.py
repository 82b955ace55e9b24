"""Enabled below its block for `__main__` only: says whether what it starts is patched. Prints JSON."""

from __future__ import annotations

import json
import multiprocessing
import multiprocessing.forkserver
import os
import sys
import types
from concurrent.futures import ThreadPoolExecutor

from probe import in_process, probe


def pool(method: str) -> int:
    with multiprocessing.get_context(method).Pool(2) as made:
        return sum(made.map(probe, range(4))) // 4


if __name__ == "__main__":
    import overlay

    methods = ["spawn", "forkserver"]
    if "early" in sys.argv:
        in_process("forkserver")
    if "armed" in sys.argv:  # from now on, for what is started
        os.environ["OVERLAY"] = "1"
    if "odd" in sys.argv:  # a fork server that this Python keeps in a way of its own
        methods.remove("forkserver")
        vars(multiprocessing.forkserver)["_forkserver"] = types.SimpleNamespace(_forkserver_pid=1)
    before = dict(os.environ)
    overlay.enable(strict="strict" in sys.argv)
    found = {f"{kind.__name__} {method}": kind(method) for kind in (in_process, pool) for method in methods}
    if "threads" in sys.argv:
        with ThreadPoolExecutor(8) as threads:
            found["threads"] = min(threads.map(in_process, ["spawn"] * 8))
    started = {name for name in os.environ if name.startswith("OVERLAY")} - {"OVERLAY_SAID"}
    found["environment kept"] = started == {name for name in before if name.startswith("OVERLAY")}
    with multiprocessing.get_context(methods[-1]).Pool(1) as alive:
        alive.map(probe, [0])
        overlay.disable()
        found["alive after disable"] = alive.map(probe, [0])[0]
    found["after disable"] = max(map(in_process, methods))
    sys.stdout.write("\n" + json.dumps(found) + "\n")
