"""What takes the place of the forward of a block that recomputes its layers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any


class _UpTo(int):
    """A number of layers which, added to a place, goes no further than the last of all."""

    last: int

    def __radd__(self, place: int) -> int:
        return min(place + int(self), self.last)


def make_forward(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build `_checkpointed_forward`, which has cut all chunks when it returns: the backward reads nothing."""
    from overlay.patches.megatron.uniform_recompute.effect import EFFECT

    def _checkpointed_forward(self: Any, *args: Any, **options: Any) -> Any:
        config, layers = self.config, self.num_layers_per_pipeline_rank
        count = config.recompute_num_layers
        if config.recompute_method != "uniform" or not count or layers % count == 0:
            return original(self, *args, **options)
        EFFECT.changed += 1
        config.recompute_num_layers = _UpTo(count)
        config.recompute_num_layers.last = layers
        try:
            return original(self, *args, **options)
        finally:
            config.recompute_num_layers = count

    return functools.wraps(original)(_checkpointed_forward)
