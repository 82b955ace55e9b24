"""Chunks of virtual stages, whose gradients are reduced as they come, have the mean gradient of the ranks."""

import importlib
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any

from overlay.compat.contracts import megatron_parts as parts
from overlay.compat.contracts.forked import wrong_on_ranks
from overlay.patch import Contract
from overlay.testing import with_patches

_UTILS = "verl.utils.megatron_utils"
RANKS, MICRO_BATCHES, SIZE, TOLERANCE = 2, 3, 5, 1e-5


def wrong(seed: str) -> str:
    """Return what a rank finds wrong, empty if none finds anything."""
    from overlay.compat.verl_imports import stand_in

    stand_in()
    return wrong_on_ranks(partial(_rank, seed), _UTILS, "megatron.core.distributed", ranks=RANKS)


def _rank(seed: str) -> Iterator[str]:
    """Yield what is wrong on one of the ranks, which all draw the same."""
    import torch

    from overlay.compat import megatron_on_cpu

    megatron_on_cpu.start_megatron()
    torch.manual_seed(int(seed) % 2**31)
    for chunks in (1, 2, 3):
        for overlap in (True, False):
            for gather in (False, True):
                found = "; ".join(_gradients(chunks, overlap=overlap, gather=gather))
                if found:
                    yield f"{chunks} chunks, overlap_grad_reduce={overlap}: {found}"


def _gradients(count: int, *, overlap: bool, gather: bool) -> Iterator[str]:
    """Yield what is wrong after micro-batches of a model, as Megatron's schedules call the hooks."""
    import torch

    config = parts.small_transformer(hidden_size=SIZE)
    chunks = []
    for _chunk in range(count):
        layer: Any = torch.nn.Linear(SIZE, SIZE)
        layer.config = config
        chunks.append(parts.data_parallel(layer, overlap_grad_reduce=overlap, align_param_gather=gather))
    optimizer = SimpleNamespace(
        scale_loss=lambda loss: loss, config=SimpleNamespace(overlap_param_gather=gather)
    )
    importlib.import_module(_UTILS).register_megatron_training_hooks(chunks, optimizer)
    hooks = [config.no_sync_func, config.grad_sync_func, config.param_sync_func]
    for hook, wanted in zip(hooks, (overlap, overlap, gather), strict=True):
        owners = [one.__self__ for one in (hook if isinstance(hook, list) else [hook]) if one is not None]
        if owners != chunks * wanted:
            yield f"hooks of {len(owners)} chunks"
            return
    inputs = torch.randn(RANKS, MICRO_BATCHES, SIZE)
    with ExitStack() as held:
        for micro_batch, states in enumerate(inputs[torch.distributed.get_rank()]):
            if overlap and not micro_batch:
                for no_sync in config.no_sync_func if count > 1 else [config.no_sync_func]:
                    held.enter_context(no_sync())
            if micro_batch == MICRO_BATCHES - 1:
                held.close()
            for chunk in chunks:
                states = chunk(states)  # noqa: PLW2901 -- through the model
            (states**2).sum().backward()
    for chunk in chunks:
        chunk.finish_grad_sync()
    yield from _off([chunk.module for chunk in chunks], inputs.reshape(-1, SIZE).double())


def _off(layers: list[Any], inputs: Any) -> Iterator[str]:
    """Yield which gradients are not the mean over ranks of those of all micro-batches, in float64."""
    import torch

    exact = [[one.detach().double().requires_grad_() for one in (it.weight, it.bias)] for it in layers]
    for weights in exact:
        inputs = torch.nn.functional.linear(inputs, *weights)
    ((inputs**2).sum() / RANKS).backward()
    for layer, (weight, bias) in zip(layers, exact, strict=True):
        for name, found, right in (("weight", layer.weight, weight), ("bias", layer.bias, bias)):
            error = parts.relative_error(found.main_grad, right.grad)
            if not error <= TOLERANCE:
                yield f"the gradient of a {name} is off by {error:.2g}"


CONTRACT = Contract(check=with_patches(wrong, "verl.vpp-training-hooks"), before=("torch",))
