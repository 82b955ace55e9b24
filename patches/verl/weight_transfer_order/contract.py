"""The contract of `verl.weight-transfer-order`: weights are read once the device has written them.

There is no device here. What stands for one finishes nothing before it is waited for, as it well may; what
reads the weights reads them at once, as a stream of its own does.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import random
import sys
import types
from typing import Any

from overlay.patch import Contract
from overlay.testing import with_patches

#: Bytes.
BUCKET = 64


class Device:
    """What has been enqueued, and is not done yet."""

    def __init__(self) -> None:
        self.enqueued: list[tuple[Any, Any]] = []
        self.sent: list[Any] = []

    def broadcast(self, bucket: Any, src_rank: int = 0, group_name: str = "") -> None:
        """Enqueue the next of the buckets that are sent."""
        self.enqueued.append((bucket, self.sent.pop(0)))

    def synchronize(self) -> None:
        """Do what has been enqueued."""
        for bucket, values in self.enqueued:
            bucket.copy_(values)
        self.enqueued.clear()


class Socket:
    """Says what is in each bucket."""

    def __init__(self, said: list[dict[str, Any]]) -> None:
        self.said = said

    def recv_string(self) -> str:
        """Return the topic."""
        return "topic"

    def recv_pyobj(self) -> dict[str, Any]:
        """Return what is in the next bucket."""
        return self.said.pop(0)


def wrong(seed: str) -> str:
    """Return what is wrong with the weights that a rollout worker receives, empty if nothing is."""
    from overlay.compat.verl_imports import stand_in

    stand_in()
    import torch

    from overlay.compat.cuda_on_cpu import replaced

    module = import_engine()
    draw = random.Random(seed)
    for buckets in (1, 2, 5):
        device = Device()
        said: list[dict[str, Any]] = []
        want = {}
        for index in range(buckets):
            name = f"weight{index}"
            want[name] = torch.randn(draw.randint(1, BUCKET // 4))
            values = torch.zeros(BUCKET, dtype=torch.uint8)
            values[: want[name].nbytes] = want[name].view(torch.uint8)
            device.sent.append(values)
            meta = _meta(module, name, want[name])
            last = index == buckets - 1
            said.append({"bucket_meta": {name: meta}, "is_last": last, "length": BUCKET})
        engine = module.NCCLCheckpointEngine.__new__(module.NCCLCheckpointEngine)
        vars(engine).update(
            rank=1, bucket_size=BUCKET, group_name="group", topic="topic", socket=Socket(said)
        )
        engine.send_buf, engine.recv_buf = (torch.zeros(BUCKET, dtype=torch.uint8) for _ in range(2))
        with (
            replaced(module.collective, "broadcast", device.broadcast),
            replaced(torch.cuda, "synchronize", device.synchronize),
        ):
            got = asyncio.run(_received(engine))
        for name, weight in want.items():
            if not torch.equal(got[name], weight):
                return f"{name} of {buckets} buckets is read before it is there"
    return ""


async def _received(engine: Any) -> dict[str, Any]:
    """Return what a rollout worker has that reads each weight when it is handed it."""
    return {name: weight.clone() async for name, weight in engine.receive_weights()}


def _meta(module: Any, name: str, weight: Any) -> Any:
    """Return what is said of a weight that is the first and only one in its bucket."""
    kind = module.TensorMeta
    known = {"name": name, "shape": weight.shape, "dtype": weight.dtype, "offset": 0}
    if issubclass(kind, dict):  # verl 0.7.1
        return kind(**known)
    return kind(**known, chunk_offset=0, chunk_size=weight.nbytes)


def import_engine() -> Any:
    """Return the module of the engine, with something in the place of packages that are not installed."""
    for name, kind in (("cupy", "ndarray"), ("zmq", "Socket")):
        if name not in sys.modules and importlib.util.find_spec(name) is None:
            sys.modules[name] = types.ModuleType(name)
            setattr(sys.modules[name], kind, type(kind, (), {}))
    return importlib.import_module("verl.checkpoint_engine.nccl_checkpoint_engine")


CONTRACT = Contract(check=with_patches(wrong, "verl.weight-transfer-order"), before=("verl.protocol",))
