"""Two pipeline stages report the same loss, that of the layers of both, though one has no experts."""

import random
from collections.abc import Iterator
from functools import partial

from overlay.compat.contracts import megatron_parts as parts
from overlay.compat.contracts.forked import wrong_on_ranks

RANKS, LAYERS = 2, 3


def wrong(seed: str) -> str:
    """Return what a rank finds wrong, empty if none finds anything."""
    return wrong_on_ranks(partial(_rank, seed), "megatron.core.transformer.moe.moe_utils", ranks=RANKS)


def _rank(seed: str) -> Iterator[str]:
    """Yield what is wrong on one of the stages, of which the last has experts."""
    import torch
    import torch.distributed as dist
    from megatron.core.transformer.moe import moe_utils

    from overlay.compat import megatron_on_cpu

    known = all(hasattr(moe_utils, name) for name in ("track_moe_metrics", "save_to_aux_losses_tracker"))
    if not known or not parts.knows(moe_utils.track_moe_metrics, "mtp_num_layers"):
        return  # it reports in another way, or nothing of multi-token prediction
    # Alone the ranks wait for each other until that is over.
    megatron_on_cpu.start_megatron(pipeline_model_parallel_size=RANKS, distributed_timeout_minutes=1)
    draw = random.Random(seed)
    for extra in (1, 2, None):
        layers = LAYERS + (extra or 0)
        losses = [draw.random() for _ in range(layers)]
        for number, loss in enumerate(losses if dist.get_rank() else (), 1):
            moe_utils.save_to_aux_losses_tracker("load_balancing_loss", torch.tensor(loss), number, layers)
        total: dict[str, float] = {}
        moe_utils.track_moe_metrics(
            loss_scale=0.5, iteration=1, writer=None, total_loss_dict=total, force_initialize=True,
            track_names=["load_balancing_loss"], num_layers=LAYERS, moe_layer_freq=1, mtp_num_layers=extra,
        )  # fmt: skip
        # 0.13 keeps no total: what counts there is that the sum ends.
        found = float(total.get("load_balancing_loss", right := 0.5 * sum(losses) / layers))
        if not abs(found - right) < 1e-6:
            yield f"with {extra} layers of multi-token prediction {total} is reported"
        moe_utils.get_moe_layer_wise_logging_tracker().clear()


CONTRACT = parts.contract("megatron.moe-tracker-with-mtp", wrong)
