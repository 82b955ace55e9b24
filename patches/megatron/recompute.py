"""`megatron.recompute`: let go of a checkpoint's input once it has been recomputed, and of nothing else.

What keeps it, measured on megatron-core 0.12 to 0.19: the recomputed forward leaves tensors with a graph in
attributes of modules, for one `token_dispatcher.probs` of each MoE layer, which live until the next forward
overwrites them. That graph ends in the `AccumulateGrad` node of the detached input, which holds the input
and, in its `.grad`, the gradient. Nothing of it is a reference cycle.

So the stock backward is called as it is, and afterwards each detached input gives up its gradient and its
reference to the storage. That touches one tensor object which only autograd still knows. The storage is
never resized: whatever else uses it, such as the tensor of which multi-token prediction got a view, keeps it.
"""

from __future__ import annotations

from overlay.compat.projects import MEGATRON, VERL
from overlay.errors import OverlayError
from overlay.patch import Absent, Known, Patch, Removal, Replacement, Target, Variant
from overlay.patches._tensor_holders import cannot_tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

ID = "megatron.recompute"

#: Mark of every backward made here: what verl's patch must find in place before it may be skipped.
_MARK = "__overlay_recompute__"


def make_backward(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build `CheckpointFunction.backward`: the original, then `release` of the inputs it recomputed from.

    The seam is `ctx.run_function`, which every original looks up to recompute: what it is called with are the
    detached inputs of this very node. So a checkpoint inside the recomputation, on whatever thread, and
    `CheckpointWithoutOutput`, which detaches for itself, never meet.
    """
    release = make_release()

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


def make_release() -> Callable[[list[Any]], None]:
    """Build the function that empties a list of detached inputs and lets go of what they hold.

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
        while inputs:
            leaf = inputs.pop()
            # The storage of a subclass (quantised, distributed, jagged) is its own business.
            if type(leaf) is not torch.Tensor or not leaf.requires_grad or leaf.layout is not torch.strided:
                continue
            if leaf.is_nested or ties(leaf) != alone:
                continue
            # The gradient has been returned: this drops a reference, and copies nothing.
            leaf.grad = None
            leaf.data = leaf.new_empty(0)

    return release


def make_verl_patch(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build `apply_patch_megatron_recomputation_backward`, which leaves overlay's backward in place.

    verl calls it from every Megatron engine to put its own backward there: one that frees the storage of the
    inputs under all their aliases, without Megatron's checkpointing flags, and with a copy of each gradient.
    """

    def apply_patch_megatron_recomputation_backward() -> None:
        from megatron.core.tensor_parallel.random import CheckpointFunction

        from overlay.enabling.process import leaving_out

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


_BACKWARD = "megatron.core.tensor_parallel.random:CheckpointFunction.backward"
_CAPTURING = "megatron.core.transformer.cuda_graphs:is_graph_capturing"
_VERL_PATCH = "verl.models.mcore.patch:apply_patch_megatron_recomputation_backward"

#: Digest of each known source, and the releases that have it.
_PLAIN = "7ba2b46a5ade"  # megatron-core 0.12.0 to 0.15.3
_FLAGGED = "9bc2baceb2bb"  # 0.16.0 to 0.19.2: marks the time of recomputation
_GRAPHED = "629490c5e6a2"  # Megatron main and dev of August 2026: may run in a CUDA graph
_RESIZING = "c9d46ace88d2"  # verl 0.8.0
_RESIZING_BUT_MTP = "edd09b20ad81"  # verl 0.9.0, 0.9.1: spares closures over an MTP layer

_REPLACED = (Replacement(site=_BACKWARD, make=make_backward),)
_STOOD_IN = (Replacement(site=_VERL_PATCH, make=make_verl_patch),)

PATCH = Patch(
    id=ID,
    revision=1,
    summary="Release a recomputed layer's input after its backward, without touching its aliases",
    why=(
        "With full recomputation of MoE layers, the input of every layer and its gradient stay in memory "
        "after the backward pass: an attribute that the recomputed forward set (token_dispatcher.probs) "
        "keeps the graph, and with it the detached input. verl frees their storage by force instead, which "
        "corrupts every alias of it (the output of the decoder under multi-token prediction, captured hidden "
        "states, delayed weight gradients), copies each gradient and loses Megatron's checkpointing flags. "
        "With the patch Megatron's own backward runs, and the detached inputs then drop their references, "
        "unless something else still uses them."
    ),
    upstream=(
        "NVIDIA/Megatron-LM#3221",
        "NVIDIA/Megatron-LM#3267",
        "NVIDIA/Megatron-LM#5197",
        "verl-project/verl#5251",
        "verl-project/verl#7328",
    ),
    remove=Removal(
        version=None,
        when=(
            "CheckpointFunction.backward lets go of its detached inputs itself, or no module keeps a tensor "
            "of the recomputed graph"
        ),
        test="tests/real/test_recompute_releases.py::test_upstream_alone_lets_go_of_the_input",
    ),
    targets=(
        Target(
            project=MEGATRON,
            variants=(
                Variant(
                    name="0.12",
                    versions=">=0.12.0.dev0,<0.21.0.dev0",
                    shape=(Known(site=_BACKWARD, digests=(_PLAIN, _FLAGGED)),),
                    replacements=_REPLACED,
                ),
                Variant(
                    name="after 0.19",
                    versions=">=0.16.0.dev0,<0.21.0.dev0",
                    shape=(
                        Known(site=_BACKWARD, digests=(_GRAPHED,)),
                        # A getter of one line. What it returns is relied on, and there is no more to it.
                        Known(site=_CAPTURING, digests=("7c37effc7469",)),
                    ),
                    replacements=(Replacement(site=_BACKWARD, make=make_graphed_backward),),
                ),
            ),
        ),
        Target(
            project=VERL,
            optional=True,
            variants=(
                Variant(
                    name="0.8",
                    versions=">=0.8.0.dev0,<0.9.0.dev0",
                    shape=(Known(site=_VERL_PATCH, digests=(_RESIZING,)),),
                    replacements=_STOOD_IN,
                ),
                # It spares a closure over an MTP layer, which Megatron has from 0.19 on only. Other aliases,
                # the flags and the copies are left.
                Variant(
                    name="0.9",
                    versions=">=0.9.0.dev0,<0.11.0.dev0",
                    shape=(Known(site=_VERL_PATCH, digests=(_RESIZING_BUT_MTP,)),),
                    replacements=_STOOD_IN,
                ),
                Variant(
                    name="0.7",
                    versions="<0.9.0.dev0",
                    verdict="not-affected",
                    shape=(Absent(site=_VERL_PATCH),),
                    reason="this verl does not patch Megatron's recomputation",
                ),
            ),
        ),
    ),
)
