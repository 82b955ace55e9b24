"""Outputs, losses and gradients are those of float64, in the memory of one tensor of the logits' size."""

from __future__ import annotations

import os

from overlay.patch import Contract
from overlay.patches.miles.loss_memory import PATCH
from overlay.testing import assert_applied, enable


def check(seed: str) -> str:
    """Run miles' own functions by the names of slime's: what needs several ranks is not seen here."""
    from overlay.compat.megatron_on_cpu import megatron
    from overlay.compat.slime_on_cpu import import_slime

    os.environ["SLIME_FORK"] = "miles"
    enable(PATCH.id)
    with megatron():
        import_slime("loss")
        assert_applied(PATCH.id)
        from overlay.compat.slime_on_cpu.loss_errors import wrong_losses, wrong_outputs
        from overlay.compat.slime_on_cpu.losses import memory

        wrong = wrong_outputs(int(seed))
        peak = memory(seed=int(seed))["peak"]
        if peak > 1.1:
            return f"{peak:.2f} times the memory of the logits"
        return wrong or wrong_losses(int(seed))


CONTRACT = Contract(check=check, before=("megatron.core", "ray", "tensordict"))
