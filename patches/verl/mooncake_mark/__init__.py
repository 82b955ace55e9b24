"""`verl.mooncake-mark`: no mark of completion is handed to the inference engine as part of a weight.

A worker marks a bucket in the memory of the worker before it, which copies what is there before it tells of
the bucket. The protocol stays the same, so a worker needs no patched neighbour.
"""

from typing import Any
from weakref import ref

from overlay.compat.projects import VERL
from overlay.effect import effect
from overlay.patch import Patch, one_target, replaced, variant

_MODULE = "verl.checkpoint_engine.mooncake_checkpoint_engine"
_ENGINE = f"{_MODULE}:MooncakeCheckpointEngine"
EFFECT = effect(__name__, "weight", did="kept a mark out of", always=True)

#: Bytes of a mark, at the beginning of each bucket.
MARK = 4


def make_init_process_group(original: Any, module: Any) -> Any:
    """Give an engine with a worker behind it a store that copies, and a `receive_weights` to match."""

    def init_process_group(self: Any, rank: int, world_size: int, metadata: dict[str, Any]) -> None:
        vars(self).pop("receive_weights", None)  # of a group before, in which it may have been another rank
        original(self, rank, world_size, metadata)
        if 0 < rank < world_size - 1:
            self.store = store = _Store(self.store, self.buf, module)
            # It is held by the engine, which it must not hold.
            reference, receive = ref(self), type(self).receive_weights
            self.receive_weights = lambda *args, **kwargs: store.handing_on(
                receive(reference(), *args, **kwargs)
            )

    return init_process_group


class _Store:
    """A store that copies what a mark is over before it tells the next worker of a bucket."""

    def __init__(self, theirs: Any, buffer: Any, module: Any) -> None:
        self._theirs, self._buffer, self._module = theirs, buffer, module
        #: Copies of weights by name, until they are handed on.
        self._kept: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._theirs, name)

    def send_obj(self, info: Any, to: int) -> Any:
        start = info["ptr"] - self._buffer.data_ptr()
        for name, meta in info["bucket_meta"].items():
            if meta["offset"] < MARK:
                first, dtype, shape = start + meta["offset"], meta["dtype"], meta["shape"]
                there = self._buffer[first : first + dtype.itemsize * shape.numel()]
                self._kept[name] = there.clone().view(dtype).view(shape)
        # The worker writes from another machine, and waits for no stream of this one.
        self._module.get_torch_device().synchronize()
        return self._theirs.send_obj(info, to)

    async def handing_on(self, weights: Any) -> Any:
        self._kept.clear()
        async for name, weight in weights:
            EFFECT.changed += name in self._kept
            yield name, self._kept.pop(name, weight)


PATCH = Patch(
    id="verl.mooncake-mark",
    summary="Rollout workers never read a completion mark as weights",
    why="A rollout worker of verl's checkpoint engine mooncake reads each bucket of weights out of the "
    "memory of the worker before it, and marks it as read with four bytes at its beginning. The other worker "
    "may still be loading the bucket: then the first elements of a weight are the mark, with no error. With "
    "the patch a worker copies the weights under these bytes, mostly one per bucket, before the next worker "
    "can write there. The last worker, and a single one, copy nothing.",
    evidence="verl 0.9.0 gives the mark a place outside the weights (#6813).",
    changes=("numbers",),
    met="Weights that are sent to two or more separate rollout workers by the checkpoint engine `mooncake`.",
    upstream=("verl-project/verl#6813",),
    targets=one_target(
        VERL,
        variant(
            "0.7.1 and 0.8",
            replaced(f"{_ENGINE}.init_process_group", make_init_process_group),
            f"{_ENGINE}.receive_weights",
        ),
        tells=(_ENGINE,),
    ),
)
