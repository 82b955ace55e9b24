"""The loss in a CUDA graph: captured once, replayed on other logits, and held to float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from devices import _loss, _loss_rivals

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Of which more is off than what float32 rounds.
TOLERANCE = 1e-5


def rows(device: str, seed: int) -> Iterator[tuple[str, str]]:
    """Yield what was captured, and what was found."""
    for name in ("overlay, blocks", "overlay, triton"):
        function = _loss_rivals.functions(device)[name]
        if device != "cuda":
            yield name, "needs a GPU"
        elif isinstance(function, str):
            yield name, function
        else:
            try:
                error = replayed(function, seed)
            except RuntimeError as raised:
                yield name, f"WRONG: {str(raised).partition(chr(10))[0][:60]}"
            else:
                yield name, f"{'WRONG: ' * (error > TOLERANCE)}error {error:.1e}"


def replayed(function: Any, seed: int) -> float:
    """Return the error of values and gradients that a graph computes of logits it was not captured with."""
    made = torch.Generator("cuda").manual_seed(seed)
    leaf = torch.randn(512, 4_999, device="cuda", generator=made).requires_grad_()
    targets = torch.randint(4_999, (512,), device="cuda", generator=made)

    def step() -> tuple[Any, Any]:
        found = function(leaf * 1, targets)
        return found, torch.autograd.grad(found.sum(), leaf)[0]

    # What is done once (kernels are compiled and tried) is done before, on a stream aside, as torch asks.
    aside: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found, gradient = step()
    with torch.no_grad():
        leaf.copy_(torch.randn(leaf.shape, device="cuda", generator=made) * 3)
        targets.copy_(torch.randint(4_999, (512,), device="cuda", generator=made))
    graph.replay()
    torch.cuda.synchronize()
    return _loss.wrong(leaf, targets, found, gradient)
