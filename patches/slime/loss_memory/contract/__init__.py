"""Outputs, losses and gradients are those of float64, in the memory of one tensor of the logits' size."""

from typing import Any

from overlay.compat.contracts.slime import BEFORE, on_megatron
from overlay.patch import Contract
from overlay.testing import assert_applied, enable


@on_megatron("loss")
def _found(seed: str, module: Any) -> str:
    """Return what is wrong with slime's own functions: what needs several ranks is not seen here.

    Where slime has another formula for a loss, it is the loss of this very slime without the patch.
    """
    from overlay.compat.slime_on_cpu.loss_errors import wrong_losses, wrong_outputs
    from overlay.patches.slime.loss_memory.contract.memory import CASES, Step

    # The last of it takes the patch out.
    assert_applied("slime.loss-memory")
    off = wrong_outputs(int(seed))
    for case in CASES:
        step = Step(module, case, 1024, 2048)
        if step.peak() > (1.1 if step.gradient else 0.2):
            return f"{case}: {step.peak():.2f} times the memory of the logits"
    return off or wrong_losses(int(seed))


def check(seed: str) -> str:
    """Look with the patch in place."""
    enable("slime.loss-memory")
    return _found(seed)


CONTRACT = Contract(check=check, before=BEFORE)
