"""The policy loss and its gradient are those of float64 with the bound of `--eps-clip-c`, and without."""

from typing import Any

from overlay.compat.contracts.slime import contract, on_megatron
from overlay.testing import as_without

#: In parts of the largest value; Megatron's cross entropy may have rounded the gradient to bfloat16.
_TOLERANCES = {"loss": 1e-5, "gradient": 2**-7}


def errors(seed: str, bound: float | None) -> Any:
    """Return how far the loss and its gradient are off, on tokens enough for some to exceed the bound."""
    from overlay.compat.slime_on_cpu.losses import loss

    return loss(((200, 199),) * 4, seed=int(seed), eps_clip_c=bound)["errors"]


@on_megatron()
def wrong(seed: str) -> str:
    """Return with which bounds the loss or its gradient is not that of float64."""
    found = {bound: errors(seed, bound) for bound in (1.5, 3.0, None)}
    # A NaN is not below anything.
    off = [bound for bound, one in found.items() if not all(one[name] < _TOLERANCES[name] for name in one)]
    return f"--eps-clip-c {off}: {found}" if off else ""


# slime's loss of a token would refuse these bounds, which slime alone ignores.
alike = on_megatron()(as_without(lambda seed: [errors(seed, bound) for bound in (1.0, 0.5)]))
CONTRACT = contract(wrong, "slime.eps-clip-c", alike=alike)
