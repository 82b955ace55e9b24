"""Megatron's optimizer that is offloaded to the host, and Adam on float32 copies to compare it with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from overlay.compat.contracts import megatron_parts as parts

#: Which share of the weights is offloaded, and whether the optimizer is precision-aware.
CASES = [(1.0, True), (1.0, False), (0.5, True), (0.5, False), (0.0, True), (0.0, False)]
_ADAM: dict[str, Any] = {"lr": 0.05, "weight_decay": 0.1, "betas": (0.9, 0.95), "eps": 1e-6}


@contextlib.contextmanager
def two_memories() -> Iterator[None]:
    """Tell tensors of the host from those of the device, which all are on the CPU.

    On the host is what `cpu()` returns, and what is copied from that. Megatron has an Adam of Transformer
    Engine's, or so it is told: without one it can't save an optimizer that has made no step.
    """
    import torch
    from megatron.core.optimizer import distrib_optimizer, optimizer_config
    from torch.overrides import TorchFunctionMode

    from overlay.compat.cuda_on_cpu import replaced

    copies = (torch.Tensor.detach, torch.Tensor.clone, torch.Tensor.float, torch.Tensor.pin_memory)

    class Memories(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            del types
            if func == torch.Tensor.is_cuda.__get__:  # type: ignore[attr-defined]
                return not hasattr(args[0], "on_host")
            result = func(*args, **kwargs or {})
            if func is torch.Tensor.cpu:
                result = result.clone()
            if func is torch.Tensor.cpu or (func in copies and hasattr(args[0], "on_host")):
                result.on_host = True
            return result

    with (
        replaced(distrib_optimizer, "HAVE_APEX_OR_TE", value=True),
        replaced(optimizer_config, "is_te_min_version", lambda *_args, **_named: False),
        # Of weights in FP8, of which there are none: 0.12 refuses without Transformer Engine.
        replaced(distrib_optimizer, "quantize_param_shard", lambda *_args: None),
        Memories(),
    ):
        yield


class Trained:
    """A model in bfloat16 under Megatron's distributed optimizer, which is offloaded."""

    def __init__(self, fraction: float, *, aware: bool) -> None:
        """`fraction` of the weights is offloaded; `aware` asks for Megatron's precision-aware optimizer."""
        import torch

        class Model(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.config = parts.small_transformer()
                for number, size in enumerate(((7, 5), (3,), (4, 6), (11,))):
                    weight = torch.randn(size, dtype=torch.bfloat16)
                    self.register_parameter(f"weight{number}", torch.nn.Parameter(weight))

        self.model = parts.data_parallel(Model(), use_distributed_optimizer=True)
        aware_too = {"use_precision_aware_optimizer": True} if aware else {}
        (self.optimizer,) = parts.optimizer(
            self.model, lr=_ADAM["lr"], weight_decay=_ADAM["weight_decay"], adam_beta1=_ADAM["betas"][0],
            adam_beta2=_ADAM["betas"][1], adam_eps=_ADAM["eps"], bf16=True, params_dtype=torch.bfloat16,
            use_distributed_optimizer=True, optimizer_cpu_offload=True, optimizer_offload_fraction=fraction,
            **aware_too,
        ).chained_optimizers  # fmt: skip

    def weights(self) -> list[Any]:
        """Return a copy of each weight."""
        return [one.detach().clone() for one in self.model.module.parameters()]

    def put(self, weights: list[Any]) -> None:
        """Put weights into the model, as a load of weights alone does."""
        for one, given in zip(self.model.module.parameters(), weights, strict=True):
            one.data.copy_(given)

    def step(self, gradients: list[Any]) -> None:
        """Do one step with these gradients."""
        for one, gradient in zip(self.model.module.parameters(), gradients, strict=True):
            one.main_grad.copy_(gradient)
        self.optimizer.step()

    def gradients(self) -> list[Any]:
        """Draw gradients, of values that the model's type has."""
        import torch

        return [torch.randn_like(one).float() for one in self.model.module.parameters()]


class Reference:
    """torch's own Adam on float32 copies of weights, by the kernel that Megatron takes on the host."""

    def __init__(self, weights: list[Any]) -> None:
        """`weights` are of the type of the model, and are not changed."""
        import torch

        self._masters = [one.float() for one in weights]
        self._adam = torch.optim.AdamW(self._masters, **_ADAM, fused=True)

    def replace(self, weights: list[Any]) -> None:
        """Go on from other weights, with the moments that there are."""
        for one, given in zip(self._masters, weights, strict=True):
            one.copy_(given)

    def step(self, gradients: list[Any]) -> list[Any]:
        """Do one step with these gradients, and return the weights, rounded to the type of the model."""
        import torch

        for one, gradient in zip(self._masters, gradients, strict=True):
            one.grad = gradient
        self._adam.step()
        return [one.to(torch.bfloat16) for one in self._masters]


def kinds() -> list[str]:
    """Return the formats of checkpoints that this Megatron has."""
    from megatron.core.dist_checkpointing import ShardedTensor
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    asked = {
        "dp_reshardable": (DistributedOptimizer, "load_parameter_state_from_dp_reshardable"),
        "fully_reshardable": (DistributedOptimizer, "load_parameter_state_from_fully_reshardable"),
        "fully_sharded_model_space": (ShardedTensor, "from_rank_offsets_flat"),
        "dp_zero_gather_scatter": (DistributedOptimizer, "load_parameter_state_from_dp_zero"),
    }
    return [kind for kind, (owner, name) in asked.items() if hasattr(owner, name)]


def state_of(trained: Trained, kind: str, *, is_loading: bool) -> dict[str, Any]:
    """Return what is saved of the model and of the optimizer."""
    from megatron.core.dist_checkpointing import ShardedTensor

    weights = {
        name: ShardedTensor.from_rank_offsets(name, one, replica_id=(0, 0, 0))
        for name, one in trained.model.module.named_parameters()
    }
    saved = trained.optimizer.sharded_state_dict
    told: dict[str, Any] = {"sharding_type": kind}
    if parts.knows(saved, "metadata"):
        told = {"metadata": {"distrib_optim_sharding_type": kind}}
    return {"model": weights, "optimizer": saved(weights, is_loading=is_loading, **told)}
