"""`verl.megatron-offload-rest`: offloading a model and its optimizer leaves nothing of them on the device.

verl walks the parameters of a model and two entries of an optimizer's state. Master weights that the
optimizer keeps in a third entry stay, and so do the FP8 copies of weights that Transformer Engine keeps in
its layers. The former are moved along, and the latter are dropped, for they are made again when they are
asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from overlay.compat.projects import VERL
from overlay.effect import effect
from overlay.patch import Absent, Patch, one_target, replaced, variant

_HOME = "verl.workers.engine.megatron.transformer_impl"
_TO, _LOAD = f"{_HOME}:MegatronEngine.to", f"{_HOME}:MegatronEngine.load_checkpoint"
_DROP = "verl.utils.megatron_utils:_clear_te_fp8_weight_workspaces"
EFFECT = effect(__name__, "tensor that stayed behind", did="moved or dropped", always=True)


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
    for chunk in chunks:
        for module in chunk.modules():
            if isinstance(copies := getattr(module, "_fp8_workspaces", None), dict):
                EFFECT.changed += len(copies)
                copies.clear()


PATCH = Patch(
    id="verl.megatron-offload-rest",
    revision=2,
    summary="Megatron: offloading leaves neither master weights nor FP8 copies on the device",
    why=(
        "verl's Megatron engine offloads the parameters of a model and two entries of its optimizer's state. "
        "The master weights of a precision-aware optimizer are a third one, two or four bytes for each "
        "parameter, and stay on the device while the rollout needs it. So do the copies of weights in FP8 "
        "that Transformer Engine keeps in its layers, about a byte for each. With the patch, as in verl 0.9, "
        "master weights go and come with the rest of the state, and the copies are dropped: Transformer "
        "Engine makes them again in the next forward pass. No value changes. Where neither is there, nothing "
        "is done. Master weights in float16 stay: to save them, Transformer Engine needs a scale that it "
        "keeps on the device. An optimizer that is on several devices by itself is left to verl, which moves "
        "all of it, and so are verl 0.6 and the legacy workers (0.7 with use_legacy_worker_impl other than "
        "disable), which offload in many places."
    ),
    evidence=(
        "verl 0.9.0 moves master weights and drops the FP8 copies too (#6635, #6952). The contract compares "
        "each value before and after."
    ),
    changes=("memory",),
    met=(
        "Offloading with Megatron (param_offload, optimizer_offload), and use_precision_aware_optimizer or "
        "FP8 of Transformer Engine."
    ),
    upstream=("verl-project/verl#6635", "verl-project/verl#6952"),
    targets=one_target(
        VERL,
        variant(
            "0.7 and 0.8",
            replaced(_TO, make_to),
            replaced(_LOAD, make_load_checkpoint),
            Absent(site=_DROP),
        ),
        tells=(_DROP,),
    ),
)
