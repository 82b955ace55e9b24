"""Process groups that are made anew after an offload have the timeout and the options that they had."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

from overlay.patch import Contract
from overlay.testing import with_patches


def wrong(seed: str) -> str:
    """Return which group is made anew with other arguments, empty if none is.

    The backend is torch's fake one: nothing is sent.
    """
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from overlay.compat.slime_on_cpu import imported

    module = imported("slime.utils.reloadable_process_group")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    made: list[tuple[Any, ...]] = []
    torchs = dist.new_group

    def new_group(
        ranks: Any = None, timeout: Any = None, backend: Any = None, pg_options: Any = None, **_more: Any
    ) -> Any:
        """Note what a group is made with, and make it without NCCL."""
        made.append((ranks, timeout, pg_options))
        return torchs(ranks=ranks, backend=backend if backend == "gloo" else "fake")

    dist.new_group = new_group  # type: ignore[assignment]  # with the parameters that are looked at
    module.monkey_patch_torch_dist()
    draw = random.Random(seed)
    timeout = timedelta(minutes=draw.randint(11, 99))
    options = object()
    dist.new_group([0, 1], timeout=timeout, pg_options=options)
    dist.new_group(ranks=[0, 2], timeout=timeout, backend="nccl")
    dist.new_group([0, 1, 3], timeout)
    dist.new_group([0, 3])
    first = list(made)
    for _ in range(2):
        made.clear()
        module.destroy_process_groups()
        module.reload_process_groups()
        if made != first:
            pairs = zip(first, made, strict=False)
            return next(
                (f"made with {one} at first, then with {two}" for one, two in pairs if one != two),
                f"{len(first)} groups at first, then {len(made)}",
            )
    return ""


CONTRACT = Contract(check=with_patches(wrong, "slime.group-timeouts"), before=("torch.distributed", "ray"))
