"""An adapter stays what was sent, whatever is sent after it, and weights of the model are not copied."""

import importlib
import importlib.util
import random
import sys
from importlib.metadata import distributions
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

from overlay.model.settings import is_alone
from overlay.patch import Contract
from overlay.testing import with_patches

_ROLLOUT = "verl.workers.rollout.vllm_rollout"


class _Sender:
    """Writes a bucket into the one buffer when the receiver asks for it, and overwrites that at the end."""

    def __init__(self, *buckets: dict[str, Any]) -> None:
        import torch

        size = max(sum(weight.nbytes for weight in bucket.values()) for bucket in buckets)
        self.buffer: Any = torch.zeros(size, dtype=torch.uint8)
        self.recv_pyobj = self._answers(buckets).__next__

    def _answers(self, buckets: Any) -> Any:
        yield (lambda: self.buffer), ()
        for index, bucket in enumerate(buckets, start=1):
            offset, said = 0, {}
            for name, weight in bucket.items():
                place = {"name": name, "shape": weight.shape, "dtype": weight.dtype, "offset": offset}
                said[name] = {**place, "handle": None}
                self.buffer[offset : offset + weight.nbytes] = weight.view(self.buffer.dtype)
                offset += weight.nbytes
            yield {"bucket_meta": said, "is_last": index == len(buckets)}

    def send(self, _answer: bytes) -> None:
        pass

    def close(self) -> None:
        self.buffer.fill_(0xFF)


def wrong(seed: str) -> str:
    """Return what is wrong with what vLLM is given, empty if nothing is."""
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
            _receive(worker, transfer, _Sender(adapter), {"r": 8})
        for adapter, request in zip(want, given, strict=True):
            for name, weight in adapter.items():
                if not request.lora_tensors[name].equal(weight):
                    return f"{name} of an adapter is another one once the buffer is used again"
        # A release that needs no patch may copy these too: it is the patch that must not.
        return "" if is_alone() else _wrong_of_model(worker, transfer, [_weights(draw), _weights(draw)])


def _wrong_of_model(worker: Any, transfer: Any, buckets: list[dict[str, Any]]) -> str:
    """Return what is wrong with how the weights of the model itself are handed on."""
    sender = _Sender(*buckets)
    first = sender.buffer.untyped_storage().data_ptr()
    got: dict[str, Any] = {}
    copied: list[str] = []

    def load_weights(weights: Any) -> None:
        for name, weight in weights:
            got[name] = weight.clone()
            if weight.untyped_storage().data_ptr() != first:
                copied.append(name)

    worker.model_runner = SimpleNamespace(
        vllm_config=SimpleNamespace(speculative_config=None), model=SimpleNamespace(load_weights=load_weights)
    )
    _receive(worker, transfer, sender, None)
    if copied:
        return f"{copied[0]} of the model is copied"
    want = {name: weight for bucket in buckets for name, weight in bucket.items()}
    right = got.keys() == want.keys() and all(got[name].equal(weight) for name, weight in want.items())
    return "" if right else "other weights of the model"


def _receive(worker: Any, transfer: Any, sender: _Sender, adapter: Any) -> None:
    """Receive an adapter, or weights of the model, as verl's worker does."""
    import torch

    receiver = transfer.BucketedWeightReceiver.__new__(transfer.BucketedWeightReceiver)
    vars(receiver).update(device=torch.device("cpu"), use_shm=False, socket=None, buffer=None, shm=None)
    receiver._ack_pending = False  # of 0.9.1
    receiver._init_socket = lambda: vars(receiver).update(socket=sender)
    receiver.receive_weights(
        lambda weights, *_is_last: worker._update_weights(weights, peft_config=adapter, base_sync_done=True)
    )


def _weights(draw: random.Random) -> dict[str, Any]:
    import torch

    def drawn() -> Any:
        return torch.tensor([draw.gauss(0, 1) for _ in range(draw.randint(1, 9))])

    return {f"weight{index}": drawn() for index in range(draw.randint(1, 5))}


def import_worker() -> tuple[Any, Any]:
    """Return the modules of vLLM's worker and of what receives weights, and stand in for a missing vLLM."""
    from overlay.compat.verl_imports import Anything, stand_in, stand_in_for

    stand_in()
    # Something may stand in for it already.
    if not list(distributions(name="vllm")):
        stand_in_for("vllm", "zmq", "verl.utils.vllm")
        # These ask for vLLM's release, and change it.
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


CONTRACT = Contract(check=with_patches(wrong, "verl.lora-own-memory"), before=("verl.protocol",))
