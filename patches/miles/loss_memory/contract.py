"""Outputs, losses and gradients are those of float64, in the memory of one tensor of the logits' size."""

from typing import Any

from overlay.compat.contracts.slime import BEFORE, on_megatron
from overlay.patch import Contract
from overlay.testing import assert_applied, enable


@on_megatron("loss", fork="miles")
def _found(seed: str, _loss: Any) -> str:
    """Return what is wrong with miles' own functions: what needs several ranks is not seen here."""
    from overlay.compat.slime_on_cpu.loss_errors import wrong_losses, wrong_outputs
    from overlay.compat.slime_on_cpu.losses import memory

    # The last of it takes the patch out.
    assert_applied("miles.loss-memory")
    off = wrong_outputs(int(seed))
    peak = memory(seed=int(seed))["peak"]
    if peak > 1.1:
        return f"{peak:.2f} times the memory of the logits"
    return off or wrong_losses(int(seed))


def check(seed: str) -> str:
    """Look with the patch in place."""
    enable("miles.loss-memory")
    return _found(seed)


CONTRACT = Contract(check=check, before=BEFORE)
