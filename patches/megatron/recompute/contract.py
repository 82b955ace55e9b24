"""The stock gradients and flags, nothing retained, and no alias touched."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

from overlay.patch import Contract
from overlay.testing import assert_applied, enable, without

TYPE_CHECKING = False
if TYPE_CHECKING:
    import torch


def check(seed: str) -> str:
    """Return what is retained, touched, or other than with the stock backward; empty if nothing is."""
    from overlay.compat.megatron_on_cpu import megatron

    enable("megatron.recompute")
    with megatron():
        assert_applied("megatron.recompute")
        if retained := retained_bytes():
            return f"{retained} bytes of the input are retained"
        if not alias_run()["unchanged"]:
            return "an alias of the input was touched"
        ours, theirs = without(lambda: [*_recomputed(seed), flags(), without_output_inside()])
        return "" if ours == theirs else "other gradients or flags than without the patch"


def checkpointed(function: Callable[..., Any], *args: Any) -> Any:
    """Run `function` under Megatron's checkpoint."""
    from megatron.core.tensor_parallel.random import checkpoint

    return checkpoint(function, False, *args)


def _recomputed(seed: str) -> list[Any]:
    """Return the gradients of a checkpointed function of two drawn inputs, of which one is dropped out."""
    import torch

    torch.manual_seed(int(seed) % 2**31)
    one: Any
    other: Any
    one, other = (torch.randn(4, 3, requires_grad=True) for _ in range(2))
    out = checkpointed(
        lambda x, y: (torch.nn.functional.dropout(x, 0.5) @ y.T).tanh(), one * 1.0, other * 2.0
    )
    (out * torch.randn(4, 4)).sum().backward()
    return [*one.grad.flatten().tolist(), *other.grad.flatten().tolist()]


def retained_bytes() -> int:
    """Return the bytes of a checkpoint's input that are held by what keeps the recomputed graph."""
    import torch

    kept: list[Any] = []
    leaves: list[Any] = []

    def layer(x: torch.Tensor) -> Any:
        # As a token dispatcher does: an attribute that holds the graph until the next forward.
        kept[:] = [x * 2.0]
        if torch.is_grad_enabled():
            leaves.append(kept[0].grad_fn.next_functions[0][0])
        return x * 2.0 + kept[0]

    checkpointed(layer, torch.ones(5, requires_grad=True) * 1.0).sum().backward()
    return sum(node.variable.untyped_storage().nbytes() for node in leaves if hasattr(node, "variable"))


def flags() -> list[bool] | None:
    """Return Megatron's flag in the forward, in the recomputation and afterwards; `None` without a flag."""
    import torch
    from megatron.core.tensor_parallel import random

    if not hasattr(random, "is_checkpointing"):
        return None
    seen: list[bool] = []

    def watched(x: torch.Tensor) -> torch.Tensor:
        seen.append(random.is_checkpointing())
        return x * 2.0

    checkpointed(watched, torch.ones(3, requires_grad=True)).sum().backward()
    seen.append(random.is_checkpointing())
    return seen


def alias_run() -> dict[str, Any]:
    """Checkpoint a view of a tensor that others need afterwards, as multi-token prediction does."""
    import torch

    torch.manual_seed(3)
    weight = torch.randn(6, 6, requires_grad=True)
    decoder = weight @ weight
    before = decoder.detach().clone()
    chunk = torch.chunk(decoder, 1)[0]
    out = checkpointed(lambda x: (x * x).tanh(), chunk)
    left: list[int] = []
    # Stands for the backward of the decoder, which reads its saved output: after the checkpoint's own.
    decoder.register_hook(lambda _grad: left.append(decoder.untyped_storage().nbytes()))
    out.sum().backward()
    whole = decoder.untyped_storage().nbytes() == before.untyped_storage().nbytes()
    return {
        "bytes": before.untyped_storage().nbytes(),
        "bytes_when_needed": left[0],
        "unchanged": whole and bool(torch.equal(decoder, before)),
    }


def without_output_inside() -> list[float]:
    """Recompute an output-discarding checkpoint inside a checkpoint, and return the gradient."""
    import torch
    from megatron.core.tensor_parallel.random import CheckpointWithoutOutput

    # Without Transformer Engine there is no FP8, which releases from 0.13 on must be told.
    no_fp8 = {"fp8": None} if "fp8" in signature(CheckpointWithoutOutput).parameters else {}

    def inner(x: torch.Tensor) -> Any:
        discarding = CheckpointWithoutOutput(**no_fp8)
        middle = discarding.checkpoint(lambda y: y * y, x)
        out = middle * middle
        if torch.is_grad_enabled():
            discarding.discard_output_and_register_recompute(out)
        return out

    x: Any = torch.tensor([1.5, -2.0], requires_grad=True)
    checkpointed(inner, x * 1.0).sum().backward()
    return list(x.grad.tolist())


CONTRACT = Contract(check=check, before=("torch",))
