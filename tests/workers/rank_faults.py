"""Started on every rank: compares ranks of which one dies, comes too late, or has nothing to do.

Argument: what goes wrong. Prints what each comparison raised, as JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from datetime import timedelta
from typing import Any

import overlay

# Armed, and on nothing: no module of an upstream is imported here, but for one scene.
overlay.enable("megatron.recompute, verl.fast-partitioner")

import torch.distributed as dist  # noqa: E402
from torch.distributed.distributed_c10d import _get_default_store  # noqa: E402

RANK = int(os.environ["RANK"])
#: Seconds to wait for a rank that does not come, and for what does.
SHORT, LONG = 3.0, 120.0


def tried(timeout: float) -> dict[str, Any]:
    """Compare all ranks, and return what came of it."""
    try:
        overlay.agree(None, timeout)
    except overlay.AgreementError as error:
        return {"said": str(error)}
    return {"said": ""}


def say(found: dict[str, Any]) -> None:
    sys.stdout.write("\n" + json.dumps(found) + "\n")
    sys.stdout.flush()


def dies(who: int) -> None:
    """A rank is gone between arming and the comparison."""
    if who == RANK:
        say({"dead": True})
        os._exit(17)
    say(tried(SHORT))
    os._exit(0)  # the next collective would wait for the dead


def late(who: int) -> None:
    """A rank compares only after another has given up."""
    # The store lives in rank 0, which must not leave before all are done.
    store = _get_default_store()
    if who == RANK:
        store.wait(["somebody has given up"], timedelta(seconds=LONG))
    found = tried(SHORT)
    store.set("somebody has given up", "")
    store.set(f"{RANK} is done", "")
    if RANK == 0:
        store.wait([f"{rank} is done" for rank in range(dist.get_world_size())], timedelta(seconds=LONG))
    say(found)
    os._exit(0)


def idle() -> None:
    """The last rank has used nothing that is patched; then it is not in the group that is compared."""
    last = dist.get_world_size() - 1
    if last != RANK:
        importlib.import_module("verl.utils.seqlen_balancing")
    dist.barrier()
    found = tried(LONG)
    found["states"] = {one.patch: one.state for one in overlay.status().patches}
    busy = dist.new_group(list(range(last)))
    overlay.agree(busy, LONG)  # which raises if it waits for the last
    dist.barrier()
    say(found)


def main() -> None:
    dist.init_process_group("gloo")
    dist.barrier()
    scenes = {
        "a rank dies": lambda: dies(2),
        "the first rank dies": lambda: dies(0),
        "a rank is too late": lambda: late(1),
        "a rank with nothing to do": idle,
    }
    scenes[sys.argv[1]]()


if __name__ == "__main__":
    main()
