"""A resumed optimizer that is offloaded does the steps that the saved one does, to the bit."""

import tempfile
from typing import Any

from overlay.compat.contracts import megatron_parts as parts
from overlay.compat.contracts.offloaded import CASES, Reference, Trained, two_memories

STEPS = 5


@parts.on_one_rank
def wrong(_seed: str) -> str:
    """Return after which resume a step gives other weights than without it, empty if none does."""
    import torch

    for fraction, aware in CASES:
        with two_memories():
            trained = Trained(fraction, aware=aware)
            reference = Reference(trained.weights())
            for _ in range(STEPS):
                gradients = trained.gradients()
                trained.step(gradients)
                reference.step(gradients)
            resumed = {kind: _resumed(trained, kind, fraction, aware=aware) for kind in _kinds()}
            for step in range(2):
                gradients = trained.gradients()
                wanted = reference.step(gradients)
                for kind, one in {"none": trained, **resumed}.items():
                    one.step(gradients)
                    if not all(map(torch.equal, one.weights(), wanted)):
                        how = f"{fraction:.0%} offloaded, {'' if aware else 'not '}precision-aware"
                        return f"{how}, saved as {kind}: step {step} after the resume gives other weights"
    return ""


def _kinds() -> list[str]:
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


def _resumed(trained: Trained, kind: str, fraction: float, *, aware: bool) -> Trained:
    """Save, and return another that has loaded it, as a job does that goes on."""
    from megatron.core import dist_checkpointing

    other = Trained(fraction, aware=aware)
    with tempfile.TemporaryDirectory() as folder:
        dist_checkpointing.save(_state(trained, kind, is_loading=False), folder)
        loaded = dist_checkpointing.load(_state(other, kind, is_loading=True), folder)
    other.put([loaded["model"][name] for name, _ in other.model.module.named_parameters()])
    other.optimizer.load_state_dict(loaded["optimizer"])
    return other


def _state(trained: Trained, kind: str, *, is_loading: bool) -> dict[str, Any]:
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


CONTRACT = parts.contract("megatron.offloaded-resume", wrong)
