"""What is offloaded leaves nothing behind, and comes back as it was.

There is no device here. What stands for one is that `.to` copies, as it does between devices: what is left is
what is still the very storage. Optimizer and layer are Transformer Engine's in what verl looks at.
"""

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

from overlay.patch import Contract
from overlay.testing import with_patches

_MASTER = "master_param"
STATES = ("exp_avg", "exp_avg_sq", _MASTER)


def wrong(seed: str) -> str:
    """Return what is wrong with what verl's engine offloads and loads, empty if nothing is."""
    from overlay.compat.verl_imports import imported

    engine = imported("verl.workers.engine.megatron.transformer_impl")
    parallel_state = imported("megatron.core.parallel_state")
    megatron_utils = imported("verl.utils.megatron_utils")
    patched = mock.patch.object
    with (
        patched(megatron_utils, "get_torch_device", lambda: SimpleNamespace(empty_cache=lambda: None)),
        # Which takes most of the time, and frees nothing here.
        patched(megatron_utils, "gc", SimpleNamespace(collect=lambda: 0)),
        patched(engine, "get_device_name", lambda: "cuda"),
        patched(parallel_state, "_GLOBAL_MEMORY_BUFFER", SimpleNamespace(buffer={})),
    ):
        return _wrong_of(engine.MegatronEngineWithLMHead, random.Random(seed))


def _wrong_of(engine_class: Any, draw: random.Random) -> str:
    import torch
    from megatron.core.optimizer import ChainedOptimizer

    states = [{object(): {name: _drawn(draw) for name in STATES} for _ in range(3)} for _ in range(2)]
    # Of float16 the scale stays on the device, and so does the master weight.
    scaled = _drawn(draw).half()
    left = {_MASTER: scaled}
    states[0][object()] = left
    wrappers = [SimpleNamespace(optimizer=SimpleNamespace(state=state)) for state in states]
    chained = ChainedOptimizer.__new__(ChainedOptimizer)
    # A rank may have no parameter of one of them.
    chained.chained_optimizers = [*wrappers, SimpleNamespace(optimizer=None)]
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    for optimizer, own in ((wrappers[0], states[:1]), (chained, states), (None, [])):
        engine = engine_class.__new__(engine_class)
        engine.module, engine.optimizer = [model], optimizer
        engine._is_offload_param = engine._is_offload_optimizer = True
        engine.checkpoint_mananager = SimpleNamespace(load_checkpoint=lambda **_paths: None)
        entries = [entry for state in own for entry in state.values() if entry is not left]
        if found := _wrong_moves(engine, entries, draw):
            return found
        if left[_MASTER] is not scaled:
            return "a master weight in float16 has left its scale"
    pairs = zip(model.parameters(), weights, strict=True)
    return "" if all(torch.equal(now, was) for now, was in pairs) else "other weights"


def _wrong_moves(engine: Any, entries: list[dict[str, Any]], draw: random.Random) -> str:
    """Return what is wrong with moving an engine to the CPU and back, and with its resuming."""
    import torch

    # An engine without an optimizer has nothing to offload when it resumes.
    resumes = engine.optimizer is not None

    before = [{name: value.clone() for name, value in entry.items()} for entry in entries]
    layer = engine.module[0][1]
    layer._fp8_workspaces = {"weight": _drawn(draw)}
    copies = [_watch(layer._fp8_workspaces["weight"])]
    moves: dict[str, Callable[[], Any]] = {
        "to('cpu')": lambda: engine.to("cpu"),
        "to('cuda')": lambda: engine.to("cuda"),
        **({"load_checkpoint": lambda: engine.load_checkpoint("checkpoint")} if resumes else {}),
    }
    for move, call in moves.items():
        watched = {name: [_watch(entry[name]) for entry in entries] for name in STATES}
        if move == "to('cpu')":
            watched["FP8 copies of weights"] = copies
        with mock.patch.object(torch.Tensor, "to", lambda tensor, *_given, **_named: tensor.clone()):
            call()
        for name, storages in watched.items():
            if not all(storage.expired() for storage in storages):
                return f"{move} leaves {name} where it was"
    pairs = [(now[name], was[name]) for now, was in zip(entries, before, strict=True) for name in STATES]
    return "" if all(torch.equal(now, was) for now, was in pairs) else "another state"


def _drawn(draw: random.Random) -> Any:
    import torch

    return torch.tensor([draw.gauss(0, 1) for _ in range(draw.randint(1, 9))])


def _watch(tensor: Any) -> Any:
    from torch.multiprocessing.reductions import StorageWeakRef

    weak: Any = StorageWeakRef
    return weak(tensor.untyped_storage())


CONTRACT = Contract(check=with_patches(wrong, "verl.megatron-offload-rest"), before=("verl.protocol",))
