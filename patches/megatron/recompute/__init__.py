"""`megatron.recompute`: let go of a checkpoint's input once it has been recomputed, and of nothing else.

What keeps the recomputed graph ends in the `AccumulateGrad` node of the detached input, which holds the input
and its gradient. So the stock backward is called, and afterwards each detached input gives up its gradient
and its reference to the storage. The storage is never resized: whatever else uses it keeps it.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from overlay.compat.projects import MEGATRON, VERL
from overlay.effect import Figure, effect
from overlay.errors import OverlayError
from overlay.patch import Patch, Target, around, one_target, replaced, variant
from overlay.patches._tensor_holders import cannot_tell

ID = "megatron.recompute"
_BACKWARD = "megatron.core.tensor_parallel.random:CheckpointFunction.backward"
_CAPTURING = "megatron.core.transformer.cuda_graphs:is_graph_capturing"
_VERL_PATCH = "verl.models.mcore.patch:apply_patch_megatron_recomputation_backward"
EFFECT = effect(
    __name__,
    "backward pass",
    Figure(name="released", says="the most bytes that one of them let go of", unit="bytes", combine="max"),
    Figure(name="held", says="inputs that something else held, so that they stayed"),
    did="let go of inputs in",
    then="up to {released} at once",
)
#: Mark of every backward made here: what verl's patch must find in place before it may be skipped.
_MARK = "__overlay_recompute__"


def make_backward(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build `CheckpointFunction.backward`: the original, then `release` of the inputs it recomputed from.

    Every original looks up `ctx.run_function` to recompute, and calls it with the detached inputs of this
    node: checkpoints inside the recomputation, on whatever thread, have their own.
    """
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
    """Build the backward of a Megatron that may capture a CUDA graph meanwhile, and then lets go of nothing.

    What a graph captures is replayed on the same storages.
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

    It lets go of a tensor only if nothing but the list and autograd's `AccumulateGrad` node holds it: a hook,
    a delayed weight gradient, a collective in flight and a tensor that is saved for a later backward all keep
    it whole. Aliases of its storage are tensors of their own and lose nothing in any case.
    """
    import sys

    import torch

    # It alone sees what only C++ holds.
    holders: Callable[[Any], int] | None = getattr(torch.Tensor, "_use_count", None)
    if holders is None:
        raise cannot_tell()

    def ties(leaf: Any) -> tuple[int, int]:
        """Count who holds a leaf in Python and in C++, while its `AccumulateGrad` node is alive."""
        # Which of the two counts has the node in it depends on torch and on the graph. Held here, it counts
        # for one in any case.
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
            plain = type(leaf) is torch.Tensor and leaf.layout is torch.strided and not leaf.is_nested
            if not plain or not leaf.requires_grad:
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


@around
def verl_patch(_original: Any) -> None:
    """Leave overlay's backward in place, where every Megatron engine of verl puts its own.

    verl's frees the storage of the inputs under all their aliases, without Megatron's checkpointing flags.
    """
    from megatron.core.tensor_parallel.random import CheckpointFunction

    from overlay.runtime.process import leaving_out

    backward = CheckpointFunction.backward
    if getattr(backward, _MARK, None) == ID:
        return
    code = getattr(backward, "__code__", None)
    where = f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(backward)
    msg = (
        f"{ID} stands in for verl's recomputation patch, but Megatron's CheckpointFunction.backward is not "
        f"overlay's ({where}). Call overlay.enable() before anything else patches it, or do without this "
        f"patch: {leaving_out(ID)}"
    )
    raise OverlayError(msg)


PATCH = Patch(
    id=ID,
    summary="Release a recomputed layer's input after its backward, without touching its aliases",
    why="With full recomputation of MoE layers, the input of every layer and its gradient stay in memory "
    "after the backward pass: token_dispatcher.probs keeps the graph. verl frees their storage by force, "
    "which corrupts every alias of it (the decoder's output under multi-token prediction, captured hidden "
    "states), copies each gradient and loses Megatron's flags. With the patch Megatron's own backward runs, "
    "and the detached inputs then drop their references, unless something else uses them.",
    changes=("memory",),
    met="Full recomputation of MoE layers: recompute_granularity=full. No number changes where memory was "
    "not aliased.",
    evidence="Gradients and flags are compared, to the bit, with Megatron's own backward, which runs "
    "unchanged.",
    upstream=(
        "NVIDIA/Megatron-LM#3221",
        "NVIDIA/Megatron-LM#3267",
        "NVIDIA/Megatron-LM#5197",
        "verl-project/verl#5251",
        "verl-project/verl#7328",
    ),
    targets=(
        *one_target(
            MEGATRON,
            variant("0.12", replaced(_BACKWARD, make_backward)),
            variant("after 0.19", replaced(_BACKWARD, make_graphed_backward), _CAPTURING),
        ),
        Target(
            project=VERL,
            optional=True,
            variants=tuple(variant(name, replaced(_VERL_PATCH, verl_patch)) for name in ("0.8", "0.9")),
        ),
    ),
)
