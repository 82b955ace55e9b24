"""Each rollout worker gets the very weights that were sent.

Sender and workers are verl's own, each in a thread, and a worker loads a bucket only after the one behind it
has marked it.
"""

import asyncio
import gc
import pickle
import random
import threading
import weakref
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from ctypes import memmove
from queue import Queue
from types import SimpleNamespace
from typing import Any
from unittest import mock

from overlay.patch import Contract
from overlay.testing import with_patches

#: Bytes of a bucket.
BUCKET = 64
#: Seconds for a worker's neighbour.
PATIENCE = 30


class _Group:
    """Ranks that send each other pickles; how many buckets each was told of, and had marked."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.sent: dict[tuple[int, int], Any] = defaultdict(Queue)
        self.told = [0] * ranks
        self.marked = [threading.Semaphore(0) for _ in range(ranks)]

    def create(self, *, rank: int, **_place: Any) -> Any:
        """Return the store of a rank."""

        def send(thing: Any, to: int) -> None:
            self.sent[rank, to].put(pickle.dumps(thing))

        def got(source: int) -> Any:
            return pickle.loads(self.sent[source, rank].get(timeout=PATIENCE))  # noqa: S301 -- our own

        def receive(source: int) -> Any:
            self.told[rank] += 1
            return got(source)

        def gather(thing: Any) -> list[Any]:
            for to in range(self.ranks):
                send(thing, to)
            return [got(source) for source in range(self.ranks)]

        return SimpleNamespace(send_obj=send, recv_obj=receive, all_gather_obj=gather)

    def engine(self, rank: int) -> Any:
        """Return what a rank reads and writes the memory of others by. All of them are in this process."""

        def read(_session: str, here: int, there: int, size: int) -> int:
            memmove(here, there, size)
            return 0

        def write(_session: str, here: int, there: int, size: int) -> int:
            memmove(there, here, size)
            self.marked[rank - 1].release()
            return 0

        return SimpleNamespace(transfer_sync_read=read, transfer_sync_write=write)


def wrong(seed: str, *, left: bool = False) -> str:
    """Return which weights differ on a worker, or, if `left`, which marks of verl 0.9 outlive a transfer."""
    module = import_engine()
    draw = random.Random(seed)
    quiet = SimpleNamespace(synchronize=lambda: None, empty_cache=lambda: None)
    with mock.patch.object(module, "get_torch_device", return_value=quiet):
        for ranks in (2, 3, 4):
            if found := _transfers(module, draw, ranks, left=left):
                return found
    return ""


def _transfers(module: Any, draw: random.Random, ranks: int, *, left: bool) -> str:
    """Return what is wrong with transfers, the last in a group of one rank less."""
    engines = [_engine(module, rank) for rank in range(ranks)]
    for size in (ranks, ranks, max(ranks - 1, 2)):
        group = _Group(size)
        want = _weights(draw)
        for rank, engine in enumerate(engines):
            engine.engine = group.engine(rank)
            engine.magic_recv.zero_()
        with (
            mock.patch.object(module, "StatelessProcessGroup", group),
            ThreadPoolExecutor(size) as threads,
        ):
            running = [threads.submit(_run, group, engines[rank], rank, want) for rank in range(size)]
            got = [one.result() for one in running[1:]]
            running[0].result()
        for rank, weights in enumerate(got, start=1):
            for name, weight in want.items():
                if not weights[name].equal(weight):
                    return f"rank {rank} of {size} has another {name}"
        if left and any(engine.magic_recv.any() for engine in engines):
            return "a mark is left over"
    # Of engines that nobody uses any more the memory is free at once.
    buffers = [weakref.ref(one.buf) for one in engines]
    gc.disable()
    del engine, engines
    held = sum(buffer() is not None for buffer in buffers)
    gc.enable()
    return f"{held} buffers outlive their engines" if held else ""


def _engine(module: Any, rank: int) -> Any:
    """Return an engine, which is not asked for devices and networks."""
    import torch

    engine = module.MooncakeCheckpointEngine.__new__(module.MooncakeCheckpointEngine)
    vars(engine).update(
        bucket_size=BUCKET, device="cpu", rollout_dtype=torch.bfloat16, is_master=rank == 0,
        session_id=f"session {rank}", buf=torch.zeros(2 * BUCKET, dtype=torch.uint8),
        magic_buf=torch.zeros(8, dtype=torch.uint8), magic_recv=torch.zeros(8, dtype=torch.uint8),
    )  # fmt: skip
    return engine


def _weights(draw: random.Random) -> dict[str, Any]:
    """Return weights of two buckets or more. The least has two bytes: a mark may be over two of them."""
    import torch

    sizes = [draw.choice((1, 1, 2, 9, BUCKET // 2)) for _ in range(draw.randint(1, 12))]
    sizes += [BUCKET // 2, BUCKET // 2]
    return {
        f"weight{index}": torch.tensor([draw.gauss(0, 1) for _ in range(size)], dtype=torch.bfloat16)
        for index, size in enumerate(sizes)
    }


def _run(group: _Group, engine: Any, rank: int, want: dict[str, Any]) -> dict[str, Any]:
    """Take part in a transfer, and return the weights that a worker has loaded."""
    engine.init_process_group(rank, group.ranks, {"addr": "here", "port": 1})
    if rank == 0:
        asyncio.run(asyncio.wait_for(engine.send_weights(iter(want.items())), PATIENCE))
        return {}
    return asyncio.run(asyncio.wait_for(_load(group, engine, rank), PATIENCE))


async def _load(group: _Group, engine: Any, rank: int) -> dict[str, Any]:
    """Return the weights as a worker loads them that is slower than the worker behind it."""
    got: dict[str, Any] = {}
    begun = 0
    async for name, weight in engine.receive_weights():
        if rank < group.ranks - 1 and begun < group.told[rank]:
            begun += 1
            assert group.marked[rank].acquire(timeout=PATIENCE), "the next rank has not marked the bucket"
        got[name] = weight.clone()
    return got


def import_engine() -> Any:
    """Return the module of the engine, with stand-ins for packages that are not installed."""
    from overlay.compat.verl_imports import imported

    return imported("verl.checkpoint_engine.mooncake_checkpoint_engine", "mooncake", "vllm")


CONTRACT = Contract(check=with_patches(wrong, "verl.mooncake-mark"), before=("verl.protocol",))
