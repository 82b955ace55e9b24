"""Outputs, losses and gradients are those of float64, in the memory of one tensor of the logits' size."""

from __future__ import annotations

from overlay.patch import Contract
from overlay.patches.slime.loss_memory import PATCH
from overlay.testing import assert_applied, enable


def check(seed: str) -> str:
    """Run slime's own functions: what needs several ranks is not seen here.

    Where slime has another formula for a loss, it is the loss of this very slime without the patch. Without a
    gradient it is a part of the logits' size that is needed.
    """
    from overlay.compat.megatron_on_cpu import megatron
    from overlay.compat.slime_on_cpu import import_slime

    enable(PATCH.id)
    with megatron():
        (module,) = import_slime("loss")
        assert_applied(PATCH.id)
        from overlay.compat.slime_on_cpu.loss_errors import wrong_losses, wrong_outputs
        from overlay.patches.slime.loss_memory.contract.memory import CASES, Step

        wrong = wrong_outputs(int(seed))
        for case in CASES:
            step = Step(module, case, 1024, 2048)
            if step.peak() > (1.1 if step.gradient else 0.2):
                return f"{case}: {step.peak():.2f} times the memory of the logits"
        return wrong or wrong_losses(int(seed))


CONTRACT = Contract(check=check, before=("megatron.core", "ray", "tensordict"))
