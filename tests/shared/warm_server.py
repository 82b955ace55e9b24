"""Forks programs from a process that has imported what most of them begin with: `warm_server.py SOCKET`.

A program that looks at an upstream spends most of its time on the imports of torch, transformers, Ray and
others, of which no upstream is one. Here they are imported once. A program starts as `python PROGRAM` would
start it, with an environment, a path and a session of its own: nothing of overlay nor of an upstream has been
imported, and what one program does no other one sees.

It ends with its standard input: with whoever started it.

`WARM_COMPILED` in the environment of a program names a folder whose sources never change. A program on whose
path one of them comes first keeps beside them what they compile to, even under `PYTHONDONTWRITEBYTECODE`.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Generator
from pathlib import Path
from typing import Any

#: Third parties of the upstreams, those that take longest: what is not installed is left out.
BEFORE = (
    *("torch", "torch.distributed", "torch.distributed.fsdp", "torch._dynamo", "numpy", "transformers"),
    *("tensordict", "ray", "ray.dag", "hydra", "omegaconf", "pandas", "datasets", "accelerate", "peft"),
    *("wandb", "tensorboard", "torch.utils.tensorboard", "torchdata.stateful_dataloader", "codetiming"),
)
#: As in `overlay.compat.ranks.warm`, which is not imported here: a program starts without overlay.
LENGTH = 4


@contextlib.contextmanager
def server() -> Generator[str]:
    """Run a server, and give the path of its socket. What starts meanwhile waits until it has imported."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "socket"
        environ = {name: value for name, value in os.environ.items() if not name.startswith("OVERLAY")}
        # One thread for each program: they run side by side.
        environ["OMP_NUM_THREADS"] = "1"
        command = [sys.executable, "-W", "ignore", str(Path(__file__).resolve()), str(path)]
        # It ends with its standard input, which is closed on the way out.
        with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE):
            yield str(path)


def main(path: str) -> None:
    """Import, then fork a program for each connection, and say on it how the program ended."""
    for name in BEFORE:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    with socket.socket(socket.AF_UNIX) as listener:
        # Whoever finds the socket can connect to it.
        listener.bind(f"{path}.early")
        listener.listen(16)
        Path(f"{path}.early").rename(path)
        waiting: dict[int, socket.socket] = {}
        while True:
            # A program that ends is seen a little later, which costs less than a signal handler's races.
            ready, _, _ = select.select([listener, sys.stdin], [], [], 0.01 if waiting else None)
            if sys.stdin in ready:
                return
            if listener in ready:
                connection, _ = listener.accept()
                with contextlib.suppress(OSError, ValueError):
                    waiting[_fork(connection, [listener, *waiting.values()])] = connection
            _reap(waiting)


def _reap(waiting: dict[int, socket.socket]) -> None:
    """Say of each program that has ended how it did."""
    for pid in [*waiting]:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with waiting.pop(pid) as connection, contextlib.suppress(OSError):
                connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _fork(connection: socket.socket, others: list[socket.socket]) -> int:
    """Read what is to be run, fork it, and return its process id."""
    head, descriptors, _, _ = socket.recv_fds(connection, LENGTH, 2)
    text = b""
    while len(text) < int.from_bytes(head, "big"):
        text += connection.recv(65536)
    wanted = json.loads(text)
    pid = os.fork()
    if pid:
        for descriptor in descriptors:
            os.close(descriptor)
        connection.sendall(f"{pid}\n".encode())
        return pid
    status = 1
    try:
        os.setsid()
        for one in (connection, *others):
            one.close()
        for descriptor, place in zip(descriptors, (1, 2), strict=True):
            os.dup2(descriptor, place)
            os.close(descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        status = _run(wanted)
    finally:
        os._exit(status)


def _run(wanted: dict[str, Any]) -> int:
    """Be the program, and return its exit status."""
    os.environ.clear()
    os.environ.update(wanted["environ"])
    os.chdir(wanted["folder"])
    signal.set_wakeup_fd(-1)
    program, *_ = sys.argv = wanted["arguments"]
    path = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    sys.path[:1] = [str(Path(program).resolve().parent), *path]
    _as_if_new()
    # A release is compiled once and not by each program. What else may come first can change any moment.
    kept = os.environ.get("WARM_COMPILED")
    if kept and path and Path(path[0]).resolve().is_relative_to(kept):
        sys.dont_write_bytecode = False
    status = 0
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
        status = 0 if end.code is None else end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 -- as the interpreter does
        traceback.print_exc()
        status = 1
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    return status


def _as_if_new() -> None:
    """Set what was read from the environment, or drawn, when it was imported."""
    dynamo: Any = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.config.disable = os.environ.get("TORCHDYNAMO_DISABLE") == "1"
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


if __name__ == "__main__":
    main(sys.argv[1])
