"""A Megatron of one rank on a CPU, for contracts and checks of patches.

Import this before Megatron. What runs under it runs in a process of its own, with one release first on the
path, so nothing here is put back.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

#: Megatron compiles its activations. Nothing that is tested here depends on that, and it takes a compiler.
os.environ["TORCHDYNAMO_DISABLE"] = "1"

from collections.abc import Iterator

import torch
import torch._dynamo
import torch.distributed as dist

from overlay.compat.cuda_on_cpu import cuda_on_cpu
from overlay.compat.no_triton import no_triton

#: Tokens of a sequence, and of the vocabulary.
TOKENS, VOCABULARY = 64, 48


class _NoTracker:
    """Megatron's tracker of random states on the device, with none to track."""

    def get_states(self) -> dict[str, object]:
        return {}

    def set_states(self, _states: object) -> None:
        pass

    def is_initialized(self) -> bool:
        return True

    @contextlib.contextmanager
    def fork(self, _name: str = "") -> Any:
        yield


@contextlib.contextmanager
def megatron() -> Iterator[None]:
    """Stand in for the device and for Triton, and run Megatron's parallel state of a single rank."""
    with cuda_on_cpu(), no_triton():
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            start_megatron()
            yield
        finally:
            dist.destroy_process_group()


def start_megatron(**sizes: int) -> None:
    """Make Megatron's parallel state for the ranks that torch.distributed has.

    They are data parallel, but for what `sizes` says by the names that Megatron has for it.
    """
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.moe import moe_utils

    if parallel_state.model_parallel_is_initialized():  # of a group that is gone
        parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(**sizes)
    random._set_cuda_rng_state = lambda *_args, **_kwargs: None
    random.initialize_rng_tracker()
    random._CUDA_RNG_STATE_TRACKER = _NoTracker()
    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None  # some releases forget to define it without Transformer Engine


def causal_mask() -> torch.Tensor:
    """Return [1, 1, tokens, tokens], true where a token may not look."""
    return torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.bool).triu(1)
