"""A resumed optimizer that is offloaded does the steps that the saved one does, to the bit."""

import tempfile

from overlay.compat.contracts import megatron_parts as parts
from overlay.compat.contracts.offloaded import CASES, Reference, Trained, kinds, state_of, two_memories

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
            resumed = {kind: _resumed(trained, kind, fraction, aware=aware) for kind in kinds()}
            for step in range(2):
                gradients = trained.gradients()
                wanted = reference.step(gradients)
                for kind, one in {"none": trained, **resumed}.items():
                    one.step(gradients)
                    if not all(map(torch.equal, one.weights(), wanted)):
                        how = f"{fraction:.0%} offloaded, {'' if aware else 'not '}precision-aware"
                        return f"{how}, saved as {kind}: step {step} after the resume gives other weights"
    return ""


def _resumed(trained: Trained, kind: str, fraction: float, *, aware: bool) -> Trained:
    """Save, and return another that has loaded it, as a job does that goes on."""
    from megatron.core import dist_checkpointing

    other = Trained(fraction, aware=aware)
    with tempfile.TemporaryDirectory() as folder:
        dist_checkpointing.save(state_of(trained, kind, is_loading=False), folder)
        loaded = dist_checkpointing.load(state_of(other, kind, is_loading=True), folder)
    other.put([loaded["model"][name] for name, _ in other.model.module.named_parameters()])
    other.optimizer.load_state_dict(loaded["optimizer"])
    return other


CONTRACT = parts.contract("megatron.offloaded-resume", wrong)
