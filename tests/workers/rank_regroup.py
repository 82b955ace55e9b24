"""Started as a process that is a member of one group of ranks after another, each with other members.

Arguments: the name of this process, and the steps as JSON. A step has `worlds`, lists of members each of
which initialises `torch.distributed` for itself, with a new store.
Prints what each comparison raised, by step, as JSON: `{"steps": [...]}`.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from typing import Any

import overlay

overlay.enable("megatron.recompute")

import torch.distributed as dist  # noqa: E402
from rank_agree import tried  # noqa: E402
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # noqa: E402

PATIENCE = timedelta(seconds=300)
LONG = 120.0


class Member:
    """This process, in whatever place it has in a step."""

    def __init__(self, name: str, store: Any) -> None:
        self._name = name
        self._store = store

    def take(self, number: int, step: dict[str, Any]) -> dict[str, Any]:
        """Take part in a step, which ends for all processes at once."""
        worlds = [world for world in step["worlds"] if self._name in world]
        found: dict[str, Any] = self._in_world(number, worlds[0], step) if worlds else {}
        self._meet(f"end {number}", step["processes"])
        return found

    def _in_world(self, number: int, members: list[str], step: dict[str, Any]) -> dict[str, Any]:
        rank, world = members.index(self._name), len(members)
        place = f"step {number} of {members}"
        store = self._new(place, rank)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=PATIENCE)
        found: dict[str, Any] = {}
        if self._name not in step["absent"]:
            found["world"] = tried(None, step.get("timeout", LONG))
        if step.get("halves"):
            halves = [dist.new_group(list(half)) for half in (range(world // 2), range(world // 2, world))]
            found["half"] = tried(halves[rank >= world // 2], LONG)
            again = dist.new_group(list(range(world)))  # the same ranks, another group
            found["again"] = tried(again, LONG)
        self._meet(f"{place} is over", world)  # the store lives in one of them
        dist.destroy_process_group()
        return found

    def _new(self, place: str, rank: int) -> Any:
        if rank == 0:
            made = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=PATIENCE)
            self._store.set(f"port of {place}", str(made.port))
            return made
        port = int(self._store.get(f"port of {place}"))
        return TCPStore("127.0.0.1", port, is_master=False, timeout=PATIENCE)

    def _meet(self, where: str, count: int) -> None:
        if self._store.add(f"met {where}", 1) == count:
            self._store.set(f"all met {where}", "yes")
        self._store.wait([f"all met {where}"], PATIENCE)


def main() -> None:
    steps = json.loads(sys.argv[2])
    store = TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False, timeout=PATIENCE)
    member = Member(sys.argv[1], store)
    found = [member.take(number, step) for number, step in enumerate(steps)]
    sys.stdout.write("\n" + json.dumps({"steps": found}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
