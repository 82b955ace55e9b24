"""After a weight update an image is seen by the new weights, whether or not it was seen before."""

import asyncio
import importlib
import random
import sys
from contextlib import suppress
from types import SimpleNamespace
from typing import Any
from unittest import mock

from overlay import log
from overlay.model.settings import is_alone
from overlay.patch import Contract
from overlay.patches.verl.lora_own_memory.contract import import_worker
from overlay.testing import with_patches

_MODULE = "verl.workers.rollout.vllm_rollout.vllm_async_server"


class _Engine:
    """Keeps what its encoder made of an image under the hash of the image, as vLLM does."""

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.prefixes: dict[int, float] = {}
        self.images: dict[int, float] = {}

    def see(self, image: int) -> float:
        encoded = self.images.setdefault(image, image * self.weight)
        return self.prefixes.setdefault(image, encoded)

    async def reset_prefix_cache(self, **_options: Any) -> None:
        self.prefixes.clear()

    async def reset_mm_cache(self) -> None:
        """What the processor made of an image does not depend on weights."""


class _Newer(_Engine):
    """Of a vLLM that clears what its encoder made of images as well."""

    async def reset_encoder_cache(self) -> None:
        self.images.clear()


def wrong(seed: str) -> str:
    """Return what is wrong with what an engine sees after updates, empty if nothing is."""
    with suppress(ModuleNotFoundError):  # of the worker, until 0.7.0
        import_worker()
    vars(importlib.import_module("vllm"))["__version__"] = "0.17.0"
    vars(sys.modules[_MODULE.rpartition(".")[0]]).setdefault("vLLMAsyncRollout", SimpleNamespace)
    module = importlib.import_module(_MODULE)
    draw = random.Random(seed)
    kind = getattr(module, "vLLMHttpServerBase", None) or module.vLLMHttpServer
    images = [draw.randrange(1, 99) for _ in range(draw.randint(1, 5))]
    # A verl that needs no patch may ask for a vLLM that can.
    for newer in (True,) if is_alone() else (True, False):
        for node in (0, 1):
            for processor in (object(), None):
                server = object.__new__(kind)
                server.engine = (_Newer if newer else _Engine)(draw.uniform(1, 2))
                server.node_rank, server.model_config = node, SimpleNamespace(processor=processor)
                with mock.patch.object(log, "warning") as warned:
                    found = _seen(server, images, draw)
                # Without a processor there are no images, whose caches nobody has to clear.
                if processor is not None and found != ("old" if node or not newer else "new"):
                    return f"images are seen by the {found} weights, node {node}, a newer vLLM: {newer}"
                told = bool(warned.call_args_list)
                if told is not (processor is not None and not node and not newer):
                    return f"it is {'' if told else 'not '}said that images are stale, a newer vLLM: {newer}"
    return ""


def _seen(server: Any, images: list[int], draw: random.Random) -> str:
    """Return by which weights the engine sees images after two updates, each time after it has seen them."""
    found = set()
    for _update in range(2):
        for image in images:
            server.engine.see(image)
        server.engine.weight += draw.uniform(1, 2)
        asyncio.run(server.clear_kv_cache())
        new = [server.engine.see(image) == image * server.engine.weight for image in images]
        found.add("new" if all(new) else "some" if any(new) else "old")
    return " and ".join(sorted(found))


CONTRACT = Contract(check=with_patches(wrong, "verl.multimodal-caches"), before=("verl.protocol",))
