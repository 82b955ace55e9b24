"""Started in the worksite: verl's rollout modules in a Ray actor, and in what it spawns. Prints JSON.

The actor stands for a server of vLLM's, and the process for its engine core. Both import verl's own modules,
with stand-ins for vLLM, and use what patches replace there.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import multiprocessing
import os
import sys
from types import SimpleNamespace
from typing import Any

MODULE = "verl.workers.rollout.vllm_rollout.vllm_async_server"


def applied() -> list[str]:
    import overlay

    return sorted(one.patch for one in overlay.status().patches if one.state == "applied")


def engine_core(queue: Any) -> None:
    """Load an adapter by verl's extension of vLLM's workers, and say whether it has memory of its own."""
    import torch

    from overlay.patches.verl.lora_own_memory.contract import import_worker

    utils, _ = import_worker()
    vars(utils)["TensorLoRARequest"] = SimpleNamespace
    worker: Any = object.__new__(utils.vLLMColocateWorkerExtension)
    loaded: list[Any] = []
    worker.remove_lora, worker.add_lora = (lambda _number: None), loaded.append
    bucket = torch.ones(4)
    worker._update_weights([("adapter", bucket[:2])], peft_config={"r": 1}, base_sync_done=True)
    bucket.zero_()
    own = bool(loaded[0].lora_tensors["adapter"].all())
    queue.put({"right": own, "applied": applied(), "process": os.getpid()})


class Server:
    """The actor."""

    def look(self) -> dict[str, Any]:
        """Clear the caches of a stand-in for an engine, and start an engine core as vLLM does."""
        from overlay.patches.verl.lora_own_memory.contract import import_worker

        import_worker()
        vars(sys.modules["vllm"])["__version__"] = "0.17.0"
        server: Any = object.__new__(importlib.import_module(MODULE).vLLMHttpServer)
        cleared: list[str] = []

        def clears(name: str) -> Any:
            async def reset(**_options: Any) -> None:
                cleared.append(name)

            return reset

        names = ("reset_prefix_cache", "reset_mm_cache", "reset_encoder_cache")
        server.engine, server.node_rank = SimpleNamespace(**{name: clears(name) for name in names}), 0
        server.model_config = SimpleNamespace(processor=object())  # of a model that sees images
        asyncio.run(server.clear_kv_cache())
        context = multiprocessing.get_context("spawn")
        queue: Any = context.Queue()
        process = context.Process(target=engine_core, args=(queue,))
        process.start()
        core = queue.get(timeout=120)
        process.join(60)
        found = {"right": cleared == list(names), "applied": applied(), "process": os.getpid()}
        return {"server": found, "engine core": core}


if __name__ == "__main__":
    import ray

    # By its name, as verl's own classes: not the class of this script.
    from rollout_workers import Server as Imported

    ray.init(log_to_driver=False)
    actor: Any = ray.remote(Imported).remote()
    sys.stdout.write("\n" + json.dumps(ray.get(actor.look.remote()) | {"driver": os.getpid()}) + "\n")
