"""Weights are read once the device has written them: its stand-in does nothing until somebody waits."""

import asyncio
import importlib.util
import random
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

from overlay.patch import Contract
from overlay.testing import with_patches

#: Bytes.
BUCKET = 64


def wrong(seed: str) -> str:
    """Return what is wrong with the weights that a rollout worker receives, empty if nothing is."""
    import torch

    from overlay.compat.cuda_on_cpu import replaced

    module = import_engine()
    draw = random.Random(seed)
    for buckets in (1, 2, 5):
        want = {f"weight{index}": torch.randn(draw.randint(1, BUCKET // 4)) for index in range(buckets)}
        sent = list(want.values())
        enqueued: list[tuple[Any, Any]] = []

        def broadcast(bucket: Any, sent: Any = sent, enqueued: Any = enqueued, **_group: Any) -> None:
            enqueued.append((bucket, sent.pop(0)))

        def synchronize(enqueued: Any = enqueued) -> None:
            for bucket, weight in enqueued:
                bucket[: weight.nbytes] = weight.view(torch.uint8)
            enqueued.clear()

        said = [{"bucket_meta": {name: _meta(module, name, want[name])}, "length": BUCKET} for name in want]
        said = [{**one, "is_last": one is said[-1]} for one in said]
        engine = module.NCCLCheckpointEngine.__new__(module.NCCLCheckpointEngine)
        socket = SimpleNamespace(recv_string=lambda: "topic", recv_pyobj=iter(said).__next__)
        vars(engine).update(rank=1, bucket_size=BUCKET, group_name="group", topic="topic", socket=socket)
        engine.send_buf, engine.recv_buf = (torch.zeros(BUCKET, dtype=torch.uint8) for _ in range(2))
        with (
            replaced(module.collective, "broadcast", broadcast),
            replaced(torch.cuda, "synchronize", synchronize),
        ):
            got = asyncio.run(_received(engine))
        for name, weight in want.items():
            if not torch.equal(got[name], weight):
                return f"{name} of {buckets} buckets is read before it is there"
    return ""


async def _received(engine: Any) -> dict[str, Any]:
    return {name: weight.clone() async for name, weight in engine.receive_weights()}


def _meta(module: Any, name: str, weight: Any) -> Any:
    """Return the description of a weight that is alone in its bucket."""
    known = {"name": name, "shape": weight.shape, "dtype": weight.dtype, "offset": 0}
    if not issubclass(module.TensorMeta, dict):  # as in verl 0.7.1
        known |= {"chunk_offset": 0, "chunk_size": weight.nbytes}
    return module.TensorMeta(**known)


def import_engine() -> Any:
    """Return the module of the engine, with stand-ins for packages that are not installed."""
    for name, kind in (("cupy", "ndarray"), ("zmq", "Socket")):
        if name not in sys.modules and importlib.util.find_spec(name) is None:
            sys.modules[name] = ModuleType(name)
            setattr(sys.modules[name], kind, type(kind, (), {}))
    from overlay.compat.verl_imports import imported

    return imported("verl.checkpoint_engine.nccl_checkpoint_engine")


CONTRACT = Contract(check=with_patches(wrong, "verl.weight-transfer-order"), before=("verl.protocol",))
