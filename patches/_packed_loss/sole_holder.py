"""Whether anybody else sees a tensor that autograd saved, so that it must not be overwritten."""

from collections.abc import Callable
from typing import Any


def make_sole_holder() -> Callable[[Any], bool]:
    """Build `sole_holder(tensor)`, to be called in a backward with a tensor that was just unpacked there.

    It returns whether surely nothing but the node that saved the tensor holds it or its storage.
    """
    import torch

    from overlay.patches._tensor_holders import make_holders

    # How many holders an unshared tensor has depends on the versions of Python and torch: measured once.
    alone: list[tuple[int, ...]] = []
    holders = make_holders()
    if holders is None:
        return lambda _tensor: False

    class Probe(torch.autograd.Function):
        """Saves and unpacks one tensor, as the function does that asks."""

        @staticmethod
        def forward(ctx: Any, tensor: Any) -> Any:
            ctx.save_for_backward(tensor)
            return tensor.sum()

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            (tensor,) = ctx.saved_tensors
            alone.append(asked(tensor))
            return grad.expand_as(tensor)

    def asked(tensor: Any) -> tuple[int, ...]:
        # One call between the unpacking and the count, as `sole_holder` has.
        return holders(tensor)

    def measure() -> None:
        with torch.inference_mode(mode=False), torch.enable_grad():
            leaf = torch.zeros(1, requires_grad=True)
            torch.autograd.grad(Probe.apply(leaf + 1), leaf)

    def sole_holder(tensor: Any) -> bool:
        if type(tensor) is not torch.Tensor or tensor.is_leaf or not tensor.is_contiguous():
            return False
        if not alone:
            measure()
        return holders(tensor) == alone[0]

    return sole_holder
