"""Ranks that share their imports: `python -m overlay.compat.forked_ranks 8 megatron.core -- ARGUMENTS`.

Runs pytest with the arguments on as many ranks as are asked for, with the variables that torchrun gives them.
What importing Megatron takes is most of what its small tests take, on two cores eight times over. So the
modules are imported once, under the stand-ins for CUDA and Triton, and the ranks are forked from there.

Overlay is enabled before that if the environment says `OVERLAY=1`, whether or not its start-up file is there.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
import traceback
from collections.abc import Callable, Sequence

from overlay.compat.cuda_on_cpu import cuda_on_cpu
from overlay.compat.no_triton import no_triton


def main(arguments: Sequence[str]) -> int:
    """Run pytest on the ranks, and return the greatest of their exit statuses."""
    if "--" not in arguments or not arguments[0].isdecimal() or int(arguments[0]) < 1:
        sys.stderr.write("usage: python -m overlay.compat.forked_ranks RANKS [MODULE...] -- ARGUMENTS\n")
        return 2
    cut = list(arguments).index("--")
    ranks, modules, rest = int(arguments[0]), arguments[1:cut], [*arguments[cut + 1 :]]
    if os.environ.get("OVERLAY") == "1":
        import overlay

        overlay.enable()
    import pytest

    sys.argv = ["pytest", *rest]
    with no_triton(), cuda_on_cpu():
        for module in modules:
            importlib.import_module(module)
        return run(ranks, lambda: int(pytest.main(rest)))


def run(ranks: int, work: Callable[[], int]) -> int:
    """Fork the ranks, let each do its work, and return the greatest of what they return.

    A rank that raises, or is killed, counts as 1. This process holds the store by which they meet.
    """
    # Bound until the store listens on it, so that nobody else gets the port meanwhile.
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    sys.stdout.flush()
    sys.stderr.flush()
    children = [_fork(rank, ranks, bound, work) for rank in range(ranks)]
    # Not before the ranks are there: it has threads, which a fork would leave behind.
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    port = bound.getsockname()[1]
    store = TCPStore(
        "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=bound.detach()
    )
    ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    del store
    return max(end if end >= 0 else 1 for end in ends)


def first_finding(ranks: int, look: Callable[[], str]) -> str:
    """Fork the ranks, let each look at something, and return the first thing that one finds wrong.

    Empty if each rank ended well and found nothing.
    """
    reader, writer = os.pipe()

    def work() -> int:
        os.write(writer, json.dumps(look()).encode() + b"\n")
        return 0

    status = run(ranks, work)
    os.close(writer)
    with os.fdopen(reader) as answers:
        said = [json.loads(line) for line in answers]
    if status or len(said) != ranks:
        return f"{len(said)} of {ranks} ranks ended well"
    return next(filter(None, said), "")


def _fork(rank: int, ranks: int, bound: socket.socket, work: Callable[[], int]) -> int:
    """Return the process id of a rank, which never returns from here."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        port = bound.getsockname()[1]
        bound.close()
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(ranks),
            LOCAL_WORLD_SIZE=str(ranks),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            # The store is there already, so rank 0 makes none.
            TORCHELASTIC_USE_AGENT_STORE="True",
        )
        status = work()
    except BaseException:  # noqa: BLE001 -- nothing may get past here: above is the parent's code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
