"""What `verl.weight-transfer-order` puts in the place of upstream's own."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any


def make_wait(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build `wait_for_complete`: what has been waited for is complete on the device as well."""
    from overlay.patches.verl.weight_transfer_order.effect import EFFECT

    async def wait_for_complete(self: Any) -> Any:
        metadata = await original(self)
        # The broadcast has been enqueued, on a stream of Ray's own.
        module.torch.cuda.synchronize()
        EFFECT.changed += 1
        return metadata

    return wait_for_complete
