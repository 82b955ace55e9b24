"""The backward of a checkpoint that lets go of what it recomputed from, and what keeps it in place."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from overlay.errors import OverlayError
from overlay.patches._tensor_holders import cannot_tell

ID = "megatron.recompute"

#: Mark of every backward made here: what verl's patch must find in place before it may be skipped.
_MARK = "__overlay_recompute__"


def make_backward(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build `CheckpointFunction.backward`: the original, then `release` of the inputs it recomputed from.

    The seam is `ctx.run_function`, which every original looks up to recompute: what it is called with are the
    detached inputs of this very node. So a checkpoint inside the recomputation, on whatever thread, and
    `CheckpointWithoutOutput`, which detaches for itself, never meet.
    """
    from overlay.patches.megatron.recompute.effect import EFFECT

    release = make_release(EFFECT)

    def backward(ctx: Any, *args: Any) -> Any:
        run_function = ctx.run_function
        inputs: list[Any] = []

        def recompute(*detached: Any) -> Any:
            inputs.extend(detached)
            return run_function(*detached)

        ctx.run_function = recompute
        try:
            grads = original(ctx, *args)
        finally:
            # The graph may be kept for another backward.
            ctx.run_function = run_function
        release(inputs)
        return grads

    setattr(backward, _MARK, ID)
    return backward


def make_graphed_backward(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build the backward of a Megatron that may run it while it captures a CUDA graph: that one is its own.

    What a graph captures is replayed on the same storages, so nothing is let go of in it.
    """
    ours = make_backward(original, module)

    def backward(ctx: Any, *args: Any) -> Any:
        # Where the original looks it up. Not before: that module imports this one.
        from megatron.core.transformer.cuda_graphs import is_graph_capturing

        return (original if is_graph_capturing() else ours)(ctx, *args)

    setattr(backward, _MARK, ID)
    return backward


def make_release(effect: Any) -> Callable[[list[Any]], None]:
    """Build the function that empties a list of detached inputs and lets go of what they hold.

    What it lets go of is counted, with the figures `calls`, `changed`, `released` and `held`.

    It lets go of a tensor only if nothing but the list and autograd's `AccumulateGrad` node holds it: a hook
    that captured a layer's input, a delayed weight gradient, a collective in flight or a saved tensor of a
    part of the graph that has not run backward all keep it whole. Views of it and other aliases of its
    storage are tensors of their own and lose nothing in any case.
    """
    import sys

    import torch

    # Without it, what only C++ holds, such as a tensor saved for a later backward, could not be seen.
    holders: Callable[[Any], int] | None = getattr(torch.Tensor, "_use_count", None)
    if holders is None:
        raise cannot_tell()

    def ties(leaf: Any) -> tuple[int, int]:
        """Count who holds a leaf in Python and in C++, while its `AccumulateGrad` node is alive."""
        # Which of the two counts has the node in it depends on the version of torch, and whether the graph
        # still has the node on the model. Holding the node here makes it count for one in any case.
        with torch.enable_grad():
            node = leaf.view_as(leaf).grad_fn.next_functions[0][0]
        counts = sys.getrefcount(leaf), holders(leaf)
        del node
        return counts

    # A tensor of no other holder says what the counts are here, rather than a number that some version of
    # Python or torch will change.
    with torch.inference_mode(mode=False):
        lone = torch.empty(0, device="cpu", requires_grad=True)
        alone = ties(lone)

    def release(inputs: list[Any]) -> None:
        released = 0
        while inputs:
            leaf = inputs.pop()
            # The storage of a subclass (quantised, distributed, jagged) is its own business.
            if type(leaf) is not torch.Tensor or not leaf.requires_grad or leaf.layout is not torch.strided:
                continue
            if leaf.is_nested:
                continue
            if ties(leaf) != alone:
                effect.held += 1
                continue
            released += leaf.nbytes
            # The gradient has been returned: this drops a reference, and copies nothing.
            leaf.grad = None
            leaf.data = leaf.new_empty(0)
        effect.calls += 1
        if released:
            effect.changed += 1
            effect.released = max(effect.released, released)

    return release


def make_verl_patch(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build `apply_patch_megatron_recomputation_backward`, which leaves overlay's backward in place.

    verl calls it from every Megatron engine to put its own backward there: one that frees the storage of the
    inputs under all their aliases, without Megatron's checkpointing flags, and with a copy of each gradient.
    """

    def apply_patch_megatron_recomputation_backward() -> None:
        from megatron.core.tensor_parallel.random import CheckpointFunction

        from overlay.runtime.process import leaving_out

        backward = CheckpointFunction.backward
        if getattr(backward, _MARK, None) == ID:
            return
        code = getattr(backward, "__code__", None)
        where = f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(backward)
        msg = (
            f"{ID} stands in for verl's recomputation patch, but Megatron's CheckpointFunction.backward is "
            f"not overlay's ({where}). Call overlay.enable() before anything else patches it, or do without "
            f"this patch: {leaving_out(ID)}"
        )
        raise OverlayError(msg)

    return apply_patch_megatron_recomputation_backward
