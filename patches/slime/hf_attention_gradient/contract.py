"""The gradient of a layer's input is that of one process, on two ranks of each kind, in little memory."""

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace

from overlay.compat.contracts.forked import wrong_on_ranks
from overlay.patch import Contract
from overlay.testing import with_patches


def wrong(seed: str) -> str:
    """Return what is wrong with slime's layer with a causal mixing in it."""
    from overlay.compat.slime_on_cpu import TRAINING, stand_in

    stand_in()
    return wrong_on_ranks(
        partial(_wrong, int(seed)), f"{TRAINING}.cp_utils", "slime_plugins.models.hf_attention"
    )


def _wrong(seed: int) -> Iterator[str]:
    """Yield what is wrong on this rank."""
    from megatron.core import parallel_state

    from overlay.compat.slime_on_cpu.hf_attention import TOLERANCE, gradient, mixing

    for tensor, context, parallel in ((1, 2, False), (2, 1, True), (2, 1, False)):
        parallel_state.initialize_model_parallel(
            tensor, context_parallel_size=context, create_gloo_process_groups=False
        )
        found = gradient(mixing(seed), [16, 8], seed, sequence_parallel=parallel)
        parallel_state.destroy_model_parallel()
        if not max(found["output"], found["gradient"]) <= TOLERANCE:
            yield f"tp{tensor}, cp{context}, sequence parallel {parallel}: {found}"
    yield from _held()


def _held() -> Iterator[str]:
    """Yield how much more than a rank's share the backward of the gather holds, if it is too much."""
    import torch
    import torch.distributed as dist
    from slime_plugins.models import hf_attention

    from overlay.compat.live_bytes import LiveBytes

    # Releases before 0.2.4 have none: there a gradient is divided where it is.
    if (gather := getattr(hf_attention, "_AllGatherForDuplicatedComputation", None)) is None:
        return
    ctx = SimpleNamespace(rank=dist.get_rank(), group=dist.group.WORLD)
    for rows in (1, 3, 64):
        grads = torch.randn(dist.get_world_size(), rows, 1, 512).unbind()
        with LiveBytes(*grads) as held:
            own, _ = gather.backward(ctx, *grads)
        if own.shape != grads[0].shape:
            yield f"a gradient of {tuple(own.shape)} for tokens of {tuple(grads[0].shape)}"
        # Its share, and a part of all tokens, which gloo copies.
        if rows > 3 and held.peak > 2 * grads[0].nbytes:
            yield f"the backward holds {held.peak / grads[0].nbytes:.2f} times a rank's share"


CONTRACT = Contract(
    check=with_patches(wrong, "slime.hf-attention-gradient"), before=("megatron.core", "ray", "tensordict")
)
