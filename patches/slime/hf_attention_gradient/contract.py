"""The gradient of a layer's input is that of one process, on two ranks of each kind."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from overlay.compat.contracts.forked import wrong_on_ranks
from overlay.patch import Contract
from overlay.testing import with_patches


def wrong(seed: str) -> str:
    """Return what is wrong with slime's layer with a causal mixing in it, empty if nothing is."""
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


CONTRACT = Contract(
    check=with_patches(wrong, "slime.hf-attention-gradient"), before=("megatron.core", "ray", "tensordict")
)
