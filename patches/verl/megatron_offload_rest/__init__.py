"""`verl.megatron-offload-rest`: offloading a model and its optimizer leaves nothing of them on the device."""

from typing import Any

from overlay.compat.projects import VERL
from overlay.effect import effect
from overlay.patch import Absent, Patch, around, one_target, replaced, variant

_ENGINE = "verl.workers.engine.megatron.transformer_impl:MegatronEngine"
_DROP = "verl.utils.megatron_utils:_clear_te_fp8_weight_workspaces"
EFFECT = effect(__name__, "tensor that stayed behind", did="moved or dropped", always=True)

#: Where a precision-aware optimizer keeps the weights that it updates.
_MASTER = "master_param"


def make_to(original: Any, module: Any) -> Any:
    """Move master weights along with the optimizer, and drop FP8 copies, before the cache is emptied."""

    def to(self: Any, device: str, model: bool = True, optimizer: bool = True, grad: bool = True) -> Any:
        if device != "cpu":
            moved = original(self, device, model, optimizer, grad)
            if optimizer:
                _move_master_weights(self.optimizer, module.get_device_id())
            return moved
        if optimizer:
            _move_master_weights(self.optimizer, "cpu")
        for chunk in self.module if model else ():
            for layer in chunk.modules():
                # Transformer Engine makes them again when it has none.
                if isinstance(copies := getattr(layer, "_fp8_workspaces", None), dict):
                    EFFECT.changed += len(copies)
                    copies.clear()
        return original(self, device, model, optimizer, grad)

    return to


@around
def load_checkpoint(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    """Move master weights too where an optimizer is offloaded once it is loaded."""
    original(self, *args, **kwargs)
    if self._is_offload_optimizer:
        _move_master_weights(self.optimizer, "cpu")


def _move_master_weights(optimizer: Any, device: Any) -> None:
    """Move the master weights in the optimizer's state, which is None where nothing is trained.

    Optimizers that are on several devices by themselves are left alone: of these verl moves every state. So
    is float16: to save it, Transformer Engine multiplies it by a scale, which stays on the device.
    """
    import torch

    for wrapper in getattr(optimizer, "chained_optimizers", [optimizer]) if optimizer is not None else ():
        inner = wrapper.optimizer  # None where a rank has no parameter
        if inner is None or hasattr(inner, "sub_optimizers"):
            continue
        for state in inner.state.values():
            if _MASTER in state and state[_MASTER].dtype is not torch.float16:
                state[_MASTER] = state[_MASTER].to(device, non_blocking=True)
                EFFECT.changed += 1


PATCH = Patch(
    id="verl.megatron-offload-rest",
    summary="Megatron: offloading leaves neither master weights nor FP8 copies on the device",
    why="When verl's Megatron engine offloads, the master weights of a precision-aware optimizer (two or "
    "four bytes for each parameter) and the FP8 copies of weights in Transformer Engine's layers (about one) "
    "stay on the device while the rollout needs it. With the patch, as in verl 0.9, master weights move with "
    "the rest of the state, and the copies are dropped: the next forward pass makes them again. No value "
    "changes. Master weights in float16 stay, because saving them needs a scale on the device. verl 0.6 and "
    "the legacy workers (0.7 with use_legacy_worker_impl other than disable) are left alone.",
    evidence="verl 0.9.0 moves master weights and drops the FP8 copies too (#6635, #6952).",
    changes=("memory",),
    met="Offloading with Megatron, and use_precision_aware_optimizer or FP8 of Transformer Engine.",
    upstream=("verl-project/verl#6635", "verl-project/verl#6952"),
    targets=one_target(
        VERL,
        variant(
            "0.7 and 0.8",
            replaced(f"{_ENGINE}.to", make_to),
            replaced(f"{_ENGINE}.load_checkpoint", load_checkpoint),
            Absent(site=_DROP),
        ),
        tells=(_DROP,),
    ),
)
