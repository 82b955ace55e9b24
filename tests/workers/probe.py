"""Started in the worksite: shows in every kind of process whether it is patched. Prints JSON."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from typing import Any


def probe(_: object = None) -> int:
    """Use the fake upstream, which is 100 times larger where it is patched."""
    import fakeup.core

    return int(fakeup.core.scale(1))


def put(queue: multiprocessing.Queue[int]) -> None:
    queue.put(probe())


def in_process(method: str) -> int:
    context: Any = multiprocessing.get_context(method)
    queue: multiprocessing.Queue[int] = context.Queue()
    process = context.Process(target=put, args=(queue,))
    process.start()
    found = queue.get(timeout=60)
    process.join(60)
    return found


def in_fork() -> int:
    """Fork before anything of the upstream is imported, and ask the child."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, str(probe()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    return int(os.read(read, 100))


def in_subprocess_of_subprocess() -> int:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)"
    inner = "import probe; print(probe.probe())"
    done = subprocess.run(
        [sys.executable, "-c", code, inner], cwd=os.path.dirname(os.path.abspath(__file__)),  # noqa: PTH100, PTH120
        stdout=subprocess.PIPE, text=True, check=True, timeout=60,
    )  # fmt: skip
    return int(done.stdout.split()[-1])


def main() -> None:
    found = {"fork": in_fork()}
    found["main"] = probe()
    for method in ("fork", "spawn", "forkserver"):
        found[f"multiprocessing {method}"] = in_process(method)
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            found[f"pool {method}"] = sum(pool.map(probe, range(4))) // 4
    found["subprocess of a subprocess"] = in_subprocess_of_subprocess()
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] == ["child"]:
        sys.stdout.write(f"{probe()}\n{in_process('spawn')}\n")
    else:
        main()
