"""After weights alone are loaded, an offloaded optimizer steps from them, as one on the device does."""

from typing import Any

from overlay.compat.contracts import megatron_parts as parts
from overlay.compat.contracts.offloaded import CASES, Reference, Trained, two_memories


@parts.on_one_rank
def wrong(_seed: str) -> str:
    """Return after which load steps don't begin at what was loaded, empty if all do."""
    import torch

    for fraction, aware in CASES:
        with two_memories():
            trained = Trained(fraction, aware=aware)
            reference = Reference(trained.weights())
            for load in ("none", "first", "second", "with main weights"):
                if load != "none":
                    loaded = _load(trained, main=load == "with main weights" and not aware)
                    reference.replace(loaded)
                for step in range(2):
                    gradients = [step * one for one in trained.gradients()]
                    trained.step(gradients)
                    if not all(map(torch.equal, trained.weights(), reference.step(gradients))):
                        kind = f"{fraction:.0%} offloaded, {'' if aware else 'not '}precision-aware"
                        return f"{kind}: after the load {load!r} step {step} gives other weights"
    return ""


def _load(trained: Trained, *, main: bool) -> list[Any]:
    """Load weights, with main weights of more digits if Megatron can, and return what a step begins at."""
    import torch

    weights = [torch.randn_like(one) for one in trained.weights()]
    trained.put(weights)
    if not main or not parts.knows(trained.optimizer.reload_model_params, "state_dict"):
        trained.optimizer.reload_model_params()
        return weights
    fine = [one + 2.0**-12 * torch.rand(one.shape) for one in weights]
    names = [name for name, _ in trained.model.module.named_parameters()]
    trained.optimizer.reload_model_params(state_dict=dict(zip(names, fine, strict=True)))
    return fine


CONTRACT = parts.contract("megatron.offloaded-weights", wrong)
