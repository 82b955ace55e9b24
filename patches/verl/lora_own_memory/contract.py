"""The contract of `verl.lora-own-memory`: an adapter stays what was sent, whatever is sent after it.

What receives weights and hands them on is verl's own. vLLM is not there: what stands for it keeps the tensors
of an adapter as they are, and what stands for the sender writes bucket after bucket into one buffer.
"""

from __future__ import annotations

import importlib
import importlib.util
import random
import sys
from functools import partial
from importlib.metadata import distributions
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

from overlay.patch import Contract
from overlay.testing import with_patches

_ROLLOUT = "verl.workers.rollout.vllm_rollout"


class Sender:
    """Writes each bucket into the buffer when the receiver asks for it, and clears it at the end."""

    def __init__(self, buckets: list[dict[str, Any]]) -> None:
        import torch

        size = max(sum(weight.nbytes for weight in bucket.values()) for bucket in buckets)
        self.buffer: Any = torch.zeros(size, dtype=torch.uint8)
        self.buckets = buckets
        self.begun = False

    def recv_pyobj(self) -> Any:
        """Return what makes the buffer, and after that, what is in it."""
        import torch

        if not self.begun:
            self.begun = True
            return (lambda: self.buffer), ()
        bucket, offset, said = self.buckets.pop(0), 0, {}
        for name, weight in bucket.items():
            said[name] = {
                "name": name, "shape": weight.shape, "dtype": weight.dtype, "offset": offset, "handle": None
            }  # fmt: skip
            self.buffer[offset : offset + weight.nbytes] = weight.view(torch.uint8)
            offset += weight.nbytes
        return {"bucket_meta": said, "is_last": not self.buckets}

    def send(self, _answer: bytes) -> None:
        """Take an answer."""

    def close(self) -> None:
        """Use the memory for something else."""
        self.buffer.fill_(0xFF)


def wrong(seed: str, *, views: bool = False) -> str:
    """Return what is wrong with what vLLM is given, empty if nothing is.

    Args:
        seed: Of what is drawn.
        views: Whether the weights of the model itself are to be views of the buffer, as verl hands them on.

    """
    module, transfer = import_worker()
    draw = random.Random(seed)
    worker = object.__new__(module.vLLMColocateWorkerExtension)
    quiet = SimpleNamespace(synchronize=lambda: None, ipc_collect=lambda: None, empty_cache=lambda: None)
    with (
        mock.patch.object(module, "TensorLoRARequest", SimpleNamespace),
        mock.patch.object(module, "is_fp8_model", return_value=False, create=True),  # until 0.9.0
        mock.patch.object(transfer, "get_torch_device", return_value=quiet),
    ):
        given: list[Any] = []
        worker.add_lora = given.append
        want = [_weights(draw) for _ in range(2)]
        for adapter in want:
            _receive(worker, transfer, Sender([adapter]), {"r": 8})
        for adapter, request in zip(want, given, strict=True):
            for name, weight in adapter.items():
                if not request.lora_tensors[name].equal(weight):
                    return f"{name} of an adapter is another one once the buffer is used again"
        return _wrong_of_model(worker, transfer, draw) if views else ""


def _wrong_of_model(worker: Any, transfer: Any, draw: random.Random) -> str:
    """Return what is wrong with how the weights of the model itself are handed on, empty if nothing is."""
    sender = Sender([_weights(draw), _weights(draw)])
    want = {name: weight for bucket in sender.buckets for name, weight in bucket.items()}
    first = sender.buffer.untyped_storage().data_ptr()
    got: dict[str, Any] = {}
    copied: list[str] = []

    def load_weights(weights: Any) -> None:
        for name, weight in weights:
            got[name] = weight.clone()
            if weight.untyped_storage().data_ptr() != first:
                copied.append(name)

    config = SimpleNamespace(speculative_config=None)
    worker.model_runner = SimpleNamespace(
        vllm_config=config, model=SimpleNamespace(load_weights=load_weights)
    )
    _receive(worker, transfer, sender, None)
    if copied:
        return f"{copied[0]} of the model is copied"
    right = got.keys() == want.keys() and all(got[name].equal(weight) for name, weight in want.items())
    return "" if right else "other weights of the model"


def _receive(worker: Any, transfer: Any, sender: Sender, adapter: Any) -> None:
    """Let a worker receive what a sender has, as verl's worker does: an adapter, or weights of the model."""
    import torch

    receiver = transfer.BucketedWeightReceiver.__new__(transfer.BucketedWeightReceiver)
    vars(receiver).update(device=torch.device("cpu"), use_shm=False, socket=None, buffer=None, shm=None)
    receiver._init_socket = lambda: vars(receiver).update(socket=sender)
    receiver.receive_weights(
        lambda weights, *_is_last: worker._update_weights(weights, peft_config=adapter, base_sync_done=True)
    )


def _weights(draw: random.Random) -> dict[str, Any]:
    import torch

    return {
        f"weight{index}": torch.tensor([draw.gauss(0, 1) for _ in range(draw.randint(1, 9))])
        for index in range(draw.randint(1, 5))
    }


def import_worker() -> tuple[Any, Any]:
    """Return the modules of vLLM's worker and of what it receives, without vLLM for want of it."""
    from overlay.compat.verl_imports import Anything, stand_in, stand_in_for

    stand_in()
    # Something may stand in for it already.
    if not list(distributions(name="vllm")):
        stand_in_for("vllm", "zmq", "verl.utils.vllm")
        # Which ask for vLLM's release, and change it.
        package: Any = ModuleType(_ROLLOUT)
        place = importlib.util.find_spec("verl.workers.rollout")
        assert place is not None
        package.__path__ = [f"{root}/vllm_rollout" for root in place.submodule_search_locations or ()]
        sys.modules.setdefault(_ROLLOUT, package)
        changes: Any = Anything("verl.utils.vllm")
        changes.__path__ = []
        sys.modules.setdefault(changes.__name__, changes)
    utils = importlib.import_module(f"{_ROLLOUT}.utils")
    return utils, importlib.import_module(f"{_ROLLOUT}.bucketed_weight_transfer")


CONTRACT = Contract(
    check=with_patches(partial(wrong, views=True), "verl.lora-own-memory"), before=("verl.protocol",)
)
