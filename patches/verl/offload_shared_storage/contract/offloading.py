"""Offloading drawn models: what is lost, and when memory is freed.

There is no device here: what stands for one is that tensors say so, and that `.to("cpu")` copies. All else is
torch's. What would be read from a storage that is gone is not read, and comes out as nan.
"""

import random
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from overlay import log
from overlay.compat.verl_imports import imported


def is_whole(tensor: torch.Tensor) -> bool:
    """Return whether the storage of a tensor still holds its values."""
    last = tensor.storage_offset() + sum(
        stride * (size - 1) for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
    )
    return tensor.untyped_storage().nbytes() >= (last + 1) * tensor.element_size()


class Device(TorchFunctionMode):
    """Tensors say that they are on a device, `.to("cpu")` copies, and what is live is noted at each copy."""

    def __init__(self, watched: list[StorageWeakRef]) -> None:
        super().__init__()
        self.watched = watched
        self.live: list[int] = []

    def bytes_live(self) -> int:
        """Return the bytes of the watched storages that are there now."""
        new: Any = torch.UntypedStorage._new_with_weak_ptr
        return sum(
            storage.nbytes() for watched in self.watched if (storage := new(watched.cdata)) is not None
        )

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == torch.Tensor.device.__get__:
            return torch.device("cuda", 0)
        if func is torch.Tensor.to and args[1:] == ("cpu",):
            self.live.append(self.bytes_live())
            return args[0].clone() if is_whole(args[0]) else torch.full(args[0].shape, torch.nan)
        return func(*args, **(kwargs or {}))


def draw_model(draw: random.Random, shares: bool) -> tuple[torch.nn.Module, list[torch.Tensor]]:
    """Draw a model, some of whose parameters share storages, and tensors that somebody has kept of them."""
    model = torch.nn.Module()
    kept: list[torch.Tensor] = []
    storages: list[torch.Tensor] = []
    for index in range(draw.randint(1, 8)):
        way = draw.choice(("own", "same", "part", "kept", "transposed")) if shares else "own"
        if way in {"same", "part", "transposed"} and storages:
            data = draw.choice(storages).detach()
            data = {"same": data, "part": data[: len(data) // 2], "transposed": data.t()}[way]
        else:
            data = torch.randn(draw.randint(2, 40), draw.randint(1, 40))
            storages.append(data)
            if way == "kept":
                kept.append(data.detach())
        parameter = torch.nn.Parameter(data)
        if draw.random() < 0.3:
            parameter.grad = torch.randn_like(data)
            if shares and draw.random() < 0.3:
                kept.append(draw.choice((parameter.grad.detach(), parameter.grad)))
        model.register_parameter(f"weight{index}", parameter)
    return model, kept


def tensors_of(model: torch.nn.Module) -> list[torch.Tensor]:
    """Return the values of all parameters, and the gradients that there are."""
    found = []
    for parameter in model.parameters():
        found += [parameter.data, *([] if parameter.grad is None else [parameter.grad])]
    return found


def lost(after: list[torch.Tensor], before: list[torch.Tensor]) -> int:
    """Return how many tensors do not hold the values that they held."""
    pairs = zip(after, before, strict=True)
    return sum(not (is_whole(tensor) and torch.equal(tensor, value)) for tensor, value in pairs)


def look(module: Any, seed: str, count: int) -> dict[str, Any]:
    """Offload models with shared storages and without, and say what is lost and when memory is freed."""
    draw = random.Random(seed)
    torch.manual_seed(draw.randrange(2**31))
    found: dict[str, Any] = {"lost": 0, "models with losses": 0, "live": [], "left": 0, "said": []}
    for turn in range(count):
        shares = bool(turn % 2)
        model, kept = draw_model(draw, shares)
        before = [tensor.clone() for tensor in (*tensors_of(model), *kept)]
        weak: Any = StorageWeakRef
        with Device([weak(tensor.untyped_storage()) for tensor in tensors_of(model)]) as device:
            found["said"] += _offloaded(module, model)
        missing = lost([*tensors_of(model), *kept], before)
        found["lost"] += missing
        found["models with losses"] += bool(missing)
        if not shares:
            found["live"].append(device.live)
            found["left"] += device.bytes_live()
    found["again"] = again = {"lost": 0, "tensors": 0, "said": 0}
    draw = random.Random(seed)
    torch.manual_seed(draw.randrange(2**31))
    for _ in range(count):  # of models that are on the CPU already
        model, _kept = draw_model(draw, shares=False)
        before = [tensor.clone() for tensor in tensors_of(model)]
        again["said"] += len(_offloaded(module, model))
        again["lost"] += lost(tensors_of(model), before)
        again["tensors"] += len(before)
    return found


def _offloaded(module: Any, model: torch.nn.Module) -> list[str]:
    """Offload a model, and return what the patch warns of."""
    said: list[str] = []
    with mock.patch.object(log, "warning", said.append):
        module.offload_megatron_model_to_cpu([model])
    return said


def import_verl() -> Any:
    """Return the module that offloads, without a collector: what is freed is for want of references."""
    torch.cpu.empty_cache = lambda: None  # type: ignore[attr-defined]
    module = imported("verl.utils.megatron_utils")
    module.gc = SimpleNamespace(collect=lambda: 0)
    return module
