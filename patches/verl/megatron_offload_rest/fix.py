"""Moves what verl's own offloading leaves on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

#: Where a precision-aware optimizer keeps the weights that it updates.
_MASTER = "master_param"


def make_to(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build `to`: master weights go and come with the model's optimizer, and copies are dropped.

    On the way to the CPU that is first, because the original empties the cache of the device.
    """

    def to(self: Any, device: str, model: bool = True, optimizer: bool = True, grad: bool = True) -> Any:
        if device != "cpu":
            moved = original(self, device, model, optimizer, grad)
            if optimizer:
                _move_master_weights(self.optimizer, module.get_device_id())
            return moved
        if optimizer:
            _move_master_weights(self.optimizer, "cpu")
        if model:
            _drop_copies(self.module)
        return original(self, device, model, optimizer, grad)

    return to


def make_load_checkpoint(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build `load_checkpoint`: an optimizer that is offloaded once it is loaded leaves nothing either."""

    def load_checkpoint(
        self: Any,
        local_path: str,
        hdfs_path: str | None = None,
        del_local_after_load: bool = True,
        **kwargs: Any,
    ) -> None:
        original(self, local_path, hdfs_path, del_local_after_load, **kwargs)
        if self._is_offload_optimizer:
            _move_master_weights(self.optimizer, "cpu")

    return load_checkpoint


def _move_master_weights(optimizer: Any, device: Any) -> None:
    """Move the master weights in the optimizer's state, which is None where nothing is trained."""
    from overlay.patches.verl.megatron_offload_rest.effect import EFFECT

    for state in _states(optimizer) if optimizer is not None else ():
        state[_MASTER] = state[_MASTER].to(device, non_blocking=True)
        EFFECT.changed += 1


def _states(optimizer: Any) -> Iterator[dict[str, Any]]:
    """Yield the state of each parameter that has a master weight there.

    None for optimizers that are on several devices by themselves: of these verl moves every state. None in
    float16 either: to save them, Transformer Engine multiplies them by a scale, which stays on the device.
    """
    import torch

    for wrapper in getattr(optimizer, "chained_optimizers", [optimizer]):
        inner = wrapper.optimizer  # None where a rank has no parameter
        if inner is not None and not hasattr(inner, "sub_optimizers"):
            states = (state for state in inner.state.values() if _MASTER in state)
            yield from (state for state in states if state[_MASTER].dtype is not torch.float16)


def _drop_copies(chunks: list[Any]) -> None:
    """Drop the copies of weights in FP8 that Transformer Engine makes again when it has none."""
    from overlay.patches.verl.megatron_offload_rest.effect import EFFECT

    for chunk in chunks:
        for module in chunk.modules():
            if isinstance(copies := getattr(module, "_fp8_workspaces", None), dict):
                EFFECT.changed += len(copies)
                copies.clear()
