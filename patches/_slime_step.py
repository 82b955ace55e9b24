"""What `slime.capped-partitions` and `slime.vpp-ceiling` know of the rollout that slime's iterator splits."""

from __future__ import annotations

from contextvars import ContextVar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

#: While `get_data_iterator` splits a rollout by its tokens: the tokens that a micro-batch may hold, and the
#: number of which Megatron wants the micro-batches of a step to be a multiple (1 if it takes any number).
current: ContextVar[tuple[int, int] | None] = ContextVar("overlay_slime_step", default=None)

DATA = "slime.backends.megatron_utils.data"


def read(args: Any, model: Sequence[Any], mpu: Any, get_config: Callable[[Any], Any]) -> tuple[int, int]:
    """Return the tokens of a micro-batch, over all ranks that share a sequence, and the group size.

    `model` has the chunks of this rank, and `get_config` is Megatron's `get_model_config`.
    """
    budget = args.max_tokens_per_gpu * mpu.get_context_parallel_world_size()
    if (mpu.get_virtual_pipeline_model_parallel_world_size() or 1) == 1:
        return budget, 1
    return budget, get_config(model[0]).microbatch_group_size_per_vp_stage or 1
