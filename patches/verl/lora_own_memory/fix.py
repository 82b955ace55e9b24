"""What gives vLLM LoRA adapters in memory of their own."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any


def make_update_weights(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build `_update_weights`: an adapter is copied out of the buffer that it was sent in.

    The weights of the model itself are handed on as they come: vLLM copies these into its own.
    """
    from overlay.patches.verl.lora_own_memory.effect import EFFECT

    def _update_weights(
        self: Any, weights: list[tuple[str, Any]], peft_config: dict[str, Any], base_sync_done: bool
    ) -> Any:
        if peft_config and base_sync_done:
            weights = [(name, tensor.clone()) for name, tensor in weights]
            EFFECT.changed += 1
        return original(self, weights, peft_config, base_sync_done)

    return _update_weights
