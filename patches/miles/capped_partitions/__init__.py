"""`miles.capped-partitions`: balanced by FLOPs under the budget of a micro-batch, not instead of it.

In `build_dp_schedule` the count of operations, which sees the tokens, tells the split, which does not.
"""

from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

from overlay.compat.projects import MILES
from overlay.patch import Patch, around, one_target, replaced, variant
from overlay.patches._partition.aligned import aligned
from overlay.patches._partition.counted import split_effect

_BALANCING = "miles.utils.seqlen_balancing"
_SCHEDULE = "miles.utils.dp_schedule"
EFFECT = split_effect(__name__, "step", "miles")
#: While a rollout is scheduled by FLOPs: `cap`, the tokens that a micro-batch may hold; `align`, the number
#: of which the micro-batches of a step must be a multiple; and of the step, `lengths` and `workloads`.
_step: ContextVar[SimpleNamespace | None] = ContextVar("overlay_miles_step", default=None)


@around
def schedule(original: Any, args: Any, train_parallel_config: Any, *given: Any, **named: Any) -> Any:
    """Build the schedule, whose packing is told the budget and the alignment."""
    step = None
    limited = args.use_dynamic_batch_size and args.max_tokens_per_gpu is not None
    if limited and getattr(args, "balance_by_flops", False):
        group = 1
        if (train_parallel_config["vpp_size"] or 1) > 1:
            group = train_parallel_config["microbatch_group_size_per_vp_stage"]
        cap = args.max_tokens_per_gpu * train_parallel_config["cp_size"]
        align = train_parallel_config["dp_size"] * group
        step = SimpleNamespace(cap=cap, align=align, lengths=None, workloads=None)
    token = _step.set(step)
    try:
        return original(args, train_parallel_config, *given, **named)
    finally:
        _step.reset(token)


@around
def calculate_workloads(original: Any, step_lengths: Any, *given: Any, **named: Any) -> Any:
    """Count operations, and remember the samples of the step."""
    workloads = original(step_lengths, *given, **named)
    if (step := _step.get()) is not None:
        step.lengths, step.workloads = step_lengths, workloads
    return workloads


def make_split(original: Any, module: Any) -> Any:
    """Build the split of a schedule, under the budget; dealing micro-batches out is the original's."""

    def get_seqlen_balanced_partitions(seqlen_list: Any, k_partitions: int, equal_size: bool) -> Any:
        packed = original(seqlen_list, k_partitions, equal_size)
        step = _step.get()
        if step is None or equal_size or seqlen_list is not step.workloads:
            return packed

        expand = module.expand_bins_by_splitting
        return aligned(packed, step.lengths, step.cap, lambda: step.workloads, step.align, expand, EFFECT)

    return get_seqlen_balanced_partitions


PATCH = Patch(
    id="miles.capped-partitions",
    summary="No micro-batch over max_tokens_per_gpu with --balance-by-flops, and all of them balanced",
    why="With --balance-by-flops, miles balances samples over micro-batches by their operations and without "
    "regard to max_tokens_per_gpu: a micro-batch over the budget runs out of memory some steps into a run. "
    "With the patch every micro-batch holds the budget, is balanced by FLOPs as far as that allows, and none "
    "is empty, but for a single longer sample or a step of too few samples for Megatron's number. Where "
    "miles' own result holds the budget, it is kept.",
    changes=("memory", "numbers"),
    met="--use-dynamic-batch-size with --balance-by-flops. Sums over other micro-batches round otherwise.",
    upstream=("THUDM/slime#1951",),
    evidence="miles' own packing without --balance-by-flops keeps max_tokens_per_gpu.",
    targets=one_target(
        MILES,
        variant(
            "0.1",
            replaced(f"{_SCHEDULE}:build_dp_schedule", schedule),
            replaced(f"{_SCHEDULE}:_calculate_workloads", calculate_workloads),
            replaced(f"{_SCHEDULE}:get_seqlen_balanced_partitions", make_split),
            f"{_BALANCING}:get_seqlen_balanced_partitions",
            f"{_BALANCING}:expand_bins_by_splitting",
            f"{_BALANCING}:_split_bin_by_tokens",
        ),
    ),
)
