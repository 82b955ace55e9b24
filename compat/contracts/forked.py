"""Contracts that look on ranks that are forked from this process, and share what it has imported."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator


def wrong_on_ranks(look: Callable[[], Iterator[str]], *modules: str, ranks: int = 2) -> str:
    """Return what one of the ranks finds wrong, empty if none finds anything.

    The ranks are a gloo group, and draw what they draw alike if `look` seeds it.

    `look`: is run on each rank, and yields what is wrong there. `modules`: what takes long to import, and
    what is patched: imported before the ranks are forked, with stand-ins for the device and for Triton.
    `ranks`: their number.
    """
    # Megatron compiles its activations, for which there need not be a compiler.
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    from overlay.compat.cuda_on_cpu import cuda_on_cpu
    from overlay.compat.forked_ranks import first_finding
    from overlay.compat.no_triton import no_triton

    def rank() -> str:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        dist.barrier()  # a rank that has nothing to do would end before the others have met it
        # All of it: a rank that stops at the first would leave others in a collective.
        found = "; ".join(look())
        dist.destroy_process_group()
        return found

    with cuda_on_cpu(), no_triton():
        for module in modules:
            importlib.import_module(module)
        return first_finding(ranks, rank)
