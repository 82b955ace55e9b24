"""slime's real `MegatronTrainRayActor` on CPU ranks under gloo, with a tiny model.

The actor, the model, the optimizer, the schedule, the loss and the parsers of the arguments are slime's and
Megatron's own, from a tree that has both (an image of `compat/releases.txt`). `prepare` stands in for

* CUDA and NCCL, by the CPU and gloo (`cuda_on_cpu`), and for Triton, of which nothing is run (`no_triton`);
* SGLang, its router and torch_memory_saver, which are imported and never called (`slime_on_cpu.StandIns`);
* the weights of a checkpoint, which are drawn by their names (`weights`);
* what an image has, and a newer torch without Transformer Engine has not (`gaps`);
* Ray's object store and the ids of its GPUs, where there is no Ray (`object_store`).

What else differs from a real job is said by its arguments (`arguments`): attention and norms come from
slime's own `--spec` (`layers`), and numbers are float32 in place of bfloat16.

    overlay.enable()                       # if it is to be there, and before anything of slime is imported
    slime_actor_on_cpu.prepare()
    arguments.write_model(folder, sizes := arguments.Sizes())
    args = arguments.parse(arguments.command_line(folder, sizes, 2, "--use-dynamic-batch-size", ...))
    actor = actor_class()(world_size, rank, "127.0.0.1", port)
    actor.init(args, "actor")
    actor.train(0, rollouts.references(args, actor.train_parallel_config, samples))

Nothing that is put in place is put back: each rank is a process of its own.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

#: Kept for as long as the process lasts.
CONTEXTS = contextlib.ExitStack()

#: Packages that slime's training side imports, and that are in no index or need a GPU.
PACKAGES = ("sglang", "sglang_router", "torch_memory_saver")


def prepare(*, ray: bool = False) -> None:
    """Put all stand-ins in place, once, in the thread in which the actor will run.

    `ray`: whether there is a real Ray, whose object store and GPU ids are then left alone.
    """
    # Megatron compiles its activations. Nothing that is looked at here depends on that.
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    # No compiler is asked for either: Megatron builds helpers for datasets, of which there are none.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")

    from overlay.compat.cuda_on_cpu import cuda_on_cpu
    from overlay.compat.no_triton import no_triton
    from overlay.compat.slime_on_cpu import StandIns

    if not any(isinstance(finder, StandIns) for finder in sys.meta_path):
        sys.meta_path.append(StandIns(*PACKAGES))
        CONTEXTS.enter_context(no_triton())
        # Never left: when a process ends, modules are taken apart in no order.
        CONTEXTS.enter_context(cuda_on_cpu())
    from slime_actor_on_cpu import gaps, object_store, weights

    weights.replace_checkpoint()
    gaps.fill()
    if not ray:
        object_store.replace()


def actor_class() -> Any:
    """Return slime's `MegatronTrainRayActor`, which Ray would make an actor of."""
    from slime.backends.megatron_utils.actor import MegatronTrainRayActor

    return MegatronTrainRayActor
