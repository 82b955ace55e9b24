"""The policy loss and its gradient are those of float64 with the bound of `--eps-clip-c`, and without."""

from __future__ import annotations

from typing import Any

from overlay.patch import Contract
from overlay.testing import with_patches, without

#: Tokens and response tokens: enough for some to be over the bound.
_SHAPE = ((200, 199),) * 4
#: In parts of the largest value; Megatron's cross entropy may have rounded the gradient to bfloat16.
_TOLERANCES = {"loss": 1e-5, "gradient": 2**-7}


def wrong(seed: str) -> str:
    """Return with which bounds the loss or its gradient is not that of float64, empty if with none."""
    from overlay.compat.megatron_on_cpu import megatron

    with megatron():
        from overlay.compat.slime_on_cpu.losses import loss

        for bound in (1.5, 3.0, None):
            errors = loss(_SHAPE, seed=int(seed), eps_clip_c=bound)["errors"]
            # A NaN is not below anything.
            if not all(errors[name] < most for name, most in _TOLERANCES.items()):
                return f"--eps-clip-c {bound}: {errors}"
    return ""


def alike(seed: str) -> str:
    """Compare the loss under bounds that slime's loss of a token refuses, and that do nothing in slime."""
    from overlay.compat.megatron_on_cpu import megatron

    with megatron():
        from overlay.compat.slime_on_cpu.losses import loss

        def under_each() -> list[Any]:
            return [loss(_SHAPE, seed=int(seed), eps_clip_c=bound)["errors"] for bound in (1.0, 0.5)]

        ours, theirs = without(under_each)
        return "" if ours == theirs else f"--eps-clip-c of 1 and 0.5: {ours}, and without the patch {theirs}"


CONTRACT = Contract(
    check=with_patches(wrong, "slime.eps-clip-c"),
    alike=alike,
    before=("megatron.core", "ray", "tensordict"),
)
