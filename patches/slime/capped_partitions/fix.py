"""What takes the place of slime's split: the original's, or one under the budget of a micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from overlay.patches._slime_step import current, read

#: While slime 0.3 schedules a rollout: the number of which the micro-batches of a step, over all data
#: parallel ranks, must be a multiple.
_align: ContextVar[int] = ContextVar("overlay_slime_align", default=1)


def make_iterator(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build `get_data_iterator`: the original, whose split is told the budget, unless sizes are static."""
    from megatron.core.utils import get_model_config

    def get_data_iterator(args: Any, model: Any, rollout_data: Any) -> Any:
        if not args.use_dynamic_batch_size or args.max_tokens_per_gpu is None:
            return original(args, model, rollout_data)
        token = current.set(read(args, model, module.mpu, get_model_config))
        try:
            return original(args, model, rollout_data)
        finally:
            current.reset(token)

    return get_data_iterator


def make_split(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build the `get_seqlen_balanced_partitions` of the training side: the original, or one under the budget.

    A call from anywhere but `get_data_iterator` gets the original.
    """
    from overlay import log
    from overlay.patches._partition import capped_partitions, holds
    from overlay.patches._partition.counted import count_split
    from overlay.patches.slime.capped_partitions.effect import EFFECT

    def get_seqlen_balanced_partitions(
        seqlen_list: Sequence[int], k_partitions: int, equal_size: bool
    ) -> list[list[int]]:
        if (step := current.get()) is None:
            return original(seqlen_list, k_partitions, equal_size)  # type: ignore[no-any-return]
        budget, group = step
        if group > 1 and k_partitions > len(seqlen_list):
            # Every rank has this number, and as many samples: all of them raise this.
            raise ValueError(_impossible(len(seqlen_list), k_partitions, group))
        balanced: list[list[int]] = original(seqlen_list, k_partitions, equal_size)
        EFFECT.calls += 1
        if holds(balanced, seqlen_list, budget):
            return balanced
        try:
            capped = capped_partitions(seqlen_list, k_partitions, budget)
        except ValueError as error:
            # slime has rounded the number down, which `slime.vpp-ceiling` prevents where there are samples
            # enough. An error would be that of this rank alone, for which all others would wait.
            log.warning(
                "a micro-batch will exceed its budget, as it does in slime alone, because "
                "slime.vpp-ceiling is not applied, or a step has too few samples to round its micro-batches "
                f"up: {error}"
            )
            return balanced
        count_split(EFFECT, balanced, seqlen_list, budget)
        return capped

    return get_seqlen_balanced_partitions


def make_capped(_original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build the `_get_capped_partitions` of commit 286750aa3, whose own is not balanced and may fail."""
    from overlay.patches._partition import capped_partitions
    from overlay.patches.slime.capped_partitions.effect import EFFECT

    def _get_capped_partitions(
        seqlen_list: Sequence[int], num_partitions: int, max_tokens: int
    ) -> list[list[int]]:
        # What its own would have been is not computed: it may raise.
        EFFECT.calls += 1
        EFFECT.changed += 1
        return capped_partitions(seqlen_list, num_partitions, max_tokens)

    return _get_capped_partitions


def make_schedule(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build the `build_dp_schedule` of slime 0.3: the original, whose packing is told the alignment."""

    def build_dp_schedule(
        args: Any,
        train_parallel_config: dict[str, Any],
        total_lengths: list[int],
        *,
        global_batch_size: int,
        rollout_indices: list[int],
    ) -> Any:
        group = 1
        if train_parallel_config["vpp_size"] > 1:
            group = train_parallel_config["microbatch_group_size_per_vp_stage"]
        token = _align.set(train_parallel_config["dp_size"] * group)
        try:
            return original(
                args,
                train_parallel_config,
                total_lengths,
                global_batch_size=global_batch_size,
                rollout_indices=rollout_indices,
            )
        finally:
            _align.reset(token)

    return build_dp_schedule


def make_pack(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build the `_pack_step_into_mbs` of slime 0.3.1: balanced by FLOPs, and under the budget."""
    from overlay.patches._partition.aligned import aligned
    from overlay.patches.slime.capped_partitions.effect import EFFECT

    def _pack_step_into_mbs(
        step_lengths: list[int],
        *,
        args: Any,
        use_dynamic_batch_size: bool,
        max_per_bin: int | None,
        micro_batch_size: int | None,
        balance_by_flops: bool = False,
    ) -> list[list[int]]:
        packed: list[list[int]] = original(
            step_lengths,
            args=args,
            use_dynamic_batch_size=use_dynamic_batch_size,
            max_per_bin=max_per_bin,
            micro_batch_size=micro_batch_size,
            balance_by_flops=balance_by_flops,
        )
        if not use_dynamic_batch_size or not balance_by_flops or max_per_bin is None:
            return packed

        def flops() -> list[int]:
            # A count of operations is a whole number; as a float its sums would depend on their order.
            counts = module._calculate_workloads(step_lengths, args)  # noqa: SLF001 -- how slime counts them
            return [int(count) for count in counts]

        expand = module.expand_bins_by_splitting
        return aligned(packed, step_lengths, max_per_bin, flops, _align.get(), expand, EFFECT)

    return _pack_step_into_mbs


def _impossible(samples: int, parts: int, group: int) -> str:
    return (
        f"a step of {samples} samples per data parallel rank cannot be split into {parts} micro-batches, and "
        f"Megatron takes a multiple of {group} alone (microbatch_group_size_per_vp_stage). Raise "
        f"global_batch_size for more samples in a step, or lower "
        f"--microbatch-group-size-per-virtual-pipeline-stage, or do without virtual pipeline stages."
    )
