"""`verl.multimodal-caches`: vLLM sees no image through the weights of an earlier update."""

from typing import Any

from overlay import log
from overlay.compat.projects import VERL
from overlay.effect import effect
from overlay.patch import Patch, one_target, replaced, variant

_SERVER = "verl.workers.rollout.vllm_rollout.vllm_async_server"
EFFECT = effect(__name__, "weight update", did="cleared the caches of images after", always=True)
_CANNOT = (
    "verl.multimodal-caches: this vLLM cannot clear what its encoder has made of images; where that is "
    "trained, images that were seen before enter rollouts as earlier weights encoded them"
)


def make_clear_kv_cache(original: Any, module: Any) -> Any:
    """Clear what vLLM keeps of images too, or say that this release of it cannot."""
    del module

    async def clear_kv_cache(self: Any) -> None:
        await original(self)
        if self.node_rank != 0 or self.model_config.processor is None:
            return
        await self.engine.reset_mm_cache()
        if hasattr(self.engine, "reset_encoder_cache"):
            await self.engine.reset_encoder_cache()
            EFFECT.changed += 1
        else:
            log.warning(_CANNOT)

    return clear_kv_cache


PATCH = Patch(
    id="verl.multimodal-caches",
    summary="Weight updates clear vLLM's image and video caches",
    why="After a weight update verl clears vLLM's cache of prefixes, and leaves the one of the encoder's "
    "outputs. An image or video that was seen before enters the rollout as the earlier weights encoded it, "
    "while training encodes it by the new ones. With the patch both caches of images are cleared as well, "
    "as in verl 0.9. Each image is encoded anew after an update. A vLLM that can't "
    "clear them gets a warning.",
    evidence="verl 0.9.0 clears them too (#6522).",
    changes=("numbers",),
    met="Multimodal models on vLLM whose vision encoder is trained, with separate rollout workers or "
    "free_cache_engine=False; in verl before 0.8, and on vLLM before 0.17, with any rollout.",
    upstream=("verl-project/verl#6522",),
    targets=one_target(
        VERL,
        variant("0.7.1 and 0.8", replaced(f"{_SERVER}:vLLMHttpServer.clear_kv_cache", make_clear_kv_cache)),
        variant("0.7.0", replaced(f"{_SERVER}:vLLMHttpServerBase.clear_kv_cache", make_clear_kv_cache)),
        tells=(_SERVER,),
    ),
)
