"""What takes the place of miles' split by FLOPs, and of what tells it the tokens and the budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from types import ModuleType, SimpleNamespace
from typing import Any

#: While a rollout is scheduled by FLOPs: `cap`, the tokens that a micro-batch may hold; `align`, the number
#: of which the micro-batches of a step must be a multiple; and of the step, `lengths` and `workloads`.
_step: ContextVar[SimpleNamespace | None] = ContextVar("overlay_miles_step", default=None)


def make_schedule(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build `build_dp_schedule`: the original, whose packing is told the budget and the alignment."""

    def build_dp_schedule(
        args: Any,
        train_parallel_config: dict[str, Any],
        total_lengths: list[int],
        *,
        global_batch_size: int,
        rollout_indices: list[int],
    ) -> Any:
        step = None
        limited = args.use_dynamic_batch_size and args.max_tokens_per_gpu is not None
        if limited and getattr(args, "balance_by_flops", False):
            group = 1
            if (train_parallel_config["vpp_size"] or 1) > 1:
                group = train_parallel_config["microbatch_group_size_per_vp_stage"]
            step = SimpleNamespace(
                cap=args.max_tokens_per_gpu * train_parallel_config["cp_size"],
                align=train_parallel_config["dp_size"] * group,
                lengths=None,
                workloads=None,
            )
        token = _step.set(step)
        try:
            return original(
                args,
                train_parallel_config,
                total_lengths,
                global_batch_size=global_batch_size,
                rollout_indices=rollout_indices,
            )
        finally:
            _step.reset(token)

    return build_dp_schedule


def make_workloads(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build `_calculate_workloads`: the original, which remembers the samples of the step."""

    def _calculate_workloads(step_lengths: list[int], args: Any) -> Any:
        workloads = original(step_lengths, args)
        if (step := _step.get()) is not None:
            step.lengths, step.workloads = step_lengths, workloads
        return workloads

    return _calculate_workloads


def make_split(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build the `get_seqlen_balanced_partitions` of the schedule: the original, or one under the budget.

    Micro-batches are dealt out to ranks by the same name, with their own workloads: that is the original's.
    """
    from overlay.patches._partition.aligned import aligned
    from overlay.patches.miles.capped_partitions.effect import EFFECT

    def get_seqlen_balanced_partitions(
        seqlen_list: Sequence[Any], k_partitions: int, equal_size: bool
    ) -> list[list[int]]:
        packed: list[list[int]] = original(seqlen_list, k_partitions, equal_size)
        step = _step.get()
        if step is None or equal_size or seqlen_list is not step.workloads:
            return packed

        def flops() -> list[int]:
            # A count of operations is a whole number; as a float its sums would depend on their order.
            return [int(count) for count in step.workloads]

        expand = module.expand_bins_by_splitting
        return aligned(packed, step.lengths, step.cap, flops, step.align, expand, EFFECT)

    return get_seqlen_balanced_partitions
