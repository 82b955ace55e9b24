"""Process groups that are made anew after an offload have the timeout and the options that they had."""

import random
from datetime import timedelta
from typing import Any

from overlay.patch import Contract
from overlay.testing import with_patches


def wrong(seed: str) -> str:
    """Return which group is made anew with other arguments. The backend is torch's fake one."""
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
    timeout = timedelta(minutes=random.Random(seed).randint(11, 99))
    dist.new_group([0, 1], timeout=timeout, pg_options=object())
    dist.new_group(ranks=[0, 2], timeout=timeout, backend="nccl")
    dist.new_group([0, 1, 3], timeout)
    dist.new_group([0, 3])
    first = list(made)
    for _ in range(2):
        made.clear()
        module.destroy_process_groups()
        module.reload_process_groups()
        if made != first:
            return f"groups are made with {first} at first, then with {made}"
    return ""


CONTRACT = Contract(check=with_patches(wrong, "slime.group-timeouts"), before=("torch.distributed", "ray"))
