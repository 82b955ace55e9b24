"""`slime.capped-partitions`: no micro-batch holds more tokens than the budget, and they stay balanced.

slime balances the samples over as many micro-batches as first fit needs by Karmarkar-Karp, which knows no
budget. All ranks have agreed on the number before, so nothing here is a collective.
"""

from collections.abc import Sequence
from contextvars import ContextVar
from functools import wraps
from typing import Any

from overlay import log
from overlay.compat.projects import SLIME
from overlay.patch import Patch, around, one_target, replaced, variant
from overlay.patches._partition import capped_partitions, holds
from overlay.patches._partition.aligned import aligned
from overlay.patches._partition.counted import count_split, split_effect
from overlay.patches._slime_step import DATA, current, read

EFFECT = split_effect(__name__, "step", "slime")
#: While slime 0.3 schedules a rollout: the number of which the micro-batches of a step, over all data
#: parallel ranks, must be a multiple.
_align: ContextVar[int] = ContextVar("overlay_slime_align", default=1)


def make_iterator(original: Any, module: Any) -> Any:
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


def make_split(original: Any, _module: Any) -> Any:
    """Build the `get_seqlen_balanced_partitions` that `get_data_iterator` calls: one under the budget."""

    def get_seqlen_balanced_partitions(
        seqlen_list: Sequence[int], k_partitions: int, equal_size: bool
    ) -> Any:
        if (step := current.get()) is None:
            return original(seqlen_list, k_partitions, equal_size)
        budget, group = step
        if group > 1 and k_partitions > len(seqlen_list):
            # Every rank has this number, and as many samples: all of them raise this.
            raise ValueError(
                f"a step of {len(seqlen_list)} samples per data parallel rank cannot be split into "
                f"{k_partitions} micro-batches, and Megatron takes a multiple of {group} alone "
                "(microbatch_group_size_per_vp_stage). Raise global_batch_size for more samples in a step, "
                "or lower --microbatch-group-size-per-virtual-pipeline-stage, or do without virtual pipeline "
                "stages."
            )
        balanced = original(seqlen_list, k_partitions, equal_size)
        EFFECT.calls += 1
        if holds(balanced, seqlen_list, budget):
            return balanced
        try:
            capped = capped_partitions(seqlen_list, k_partitions, budget)
        except ValueError as error:
            # An error would be that of this rank alone, for which all others would wait.
            log.warning(
                "a micro-batch will exceed its budget, as it does in slime alone, because "
                "slime.vpp-ceiling is not applied, or a step has too few samples to round its micro-batches "
                f"up: {error}"
            )
            return balanced
        count_split(EFFECT, balanced, seqlen_list, budget)
        return capped

    return get_seqlen_balanced_partitions


@around
def capped(_original: Any, seqlen_list: Sequence[int], num_partitions: int, max_tokens: int) -> Any:
    """Split under the budget, in place of commit 286750aa3, whose own split is not balanced and may raise."""
    EFFECT.calls += 1
    EFFECT.changed += 1
    return capped_partitions(seqlen_list, num_partitions, max_tokens)


@around
def schedule(original: Any, args: Any, train_parallel_config: Any, *given: Any, **named: Any) -> Any:
    """Build the schedule of slime 0.3, whose packing is told the alignment."""
    group = 1
    if train_parallel_config["vpp_size"] > 1:
        group = train_parallel_config["microbatch_group_size_per_vp_stage"]
    token = _align.set(train_parallel_config["dp_size"] * group)
    try:
        return original(args, train_parallel_config, *given, **named)
    finally:
        _align.reset(token)


def make_pack(original: Any, module: Any) -> Any:
    """Build the `_pack_step_into_mbs` of slime 0.3.1: balanced by FLOPs, and under the budget."""

    def _pack_step_into_mbs(step_lengths: list[int], *, args: Any, max_per_bin: Any, **given: Any) -> Any:
        packed = original(step_lengths, args=args, max_per_bin=max_per_bin, **given)
        if not given["use_dynamic_batch_size"] or not given.get("balance_by_flops") or max_per_bin is None:
            return packed

        def flops() -> Any:
            return module._calculate_workloads(step_lengths, args)  # noqa: SLF001 -- how slime counts them

        expand = module.expand_bins_by_splitting
        return aligned(packed, step_lengths, max_per_bin, flops, _align.get(), expand, EFFECT)

    return wraps(original)(_pack_step_into_mbs)


_BALANCING = "slime.utils.seqlen_balancing"
_SCHEDULE = "slime.utils.dp_schedule"

_BEFORE_0_3 = (
    replaced(f"{DATA}:get_data_iterator", make_iterator),
    replaced(f"{DATA}:get_seqlen_balanced_partitions", make_split),
    f"{_BALANCING}:get_seqlen_balanced_partitions",
)

PATCH = Patch(
    id="slime.capped-partitions",
    summary="No micro-batch over max_tokens_per_gpu, and all of them balanced",
    why="With use_dynamic_batch_size, slime balances samples over micro-batches without regard to "
    "max_tokens_per_gpu, and a micro-batch over the budget runs out of memory some steps into a run. "
    "Upstream's cure (slime#1823) fails on a sample longer than the budget and was reverted; slime 0.3.1 has "
    "the defect again with --balance-by-flops. With the patch every micro-batch holds the budget, is as "
    "balanced as that allows, and none is empty, except for a single longer sample or a step of too few "
    "samples for Megatron's number. Where slime's own result holds the budget, it is kept.",
    changes=("memory", "numbers"),
    met="--use-dynamic-batch-size, in 0.3.1 with --balance-by-flops. Sums round otherwise.",
    upstream=tuple(f"THUDM/slime#{number}" for number in (1823, 1838, 1839, 1848, 1951)),
    evidence="slime's quick start calls max_tokens_per_gpu the maximum per GPU, which only a single longer "
    "sample exceeds, and its commit 286750a (#1823) split under it.",
    targets=one_target(
        SLIME,
        variant("0.1-0.2", *_BEFORE_0_3),
        variant("286750aa3", *_BEFORE_0_3, replaced(f"{DATA}:_get_capped_partitions", capped)),
        variant(
            "0.3.1",
            replaced(f"{_SCHEDULE}:_pack_step_into_mbs", make_pack),
            replaced(f"{_SCHEDULE}:build_dp_schedule", schedule),
            f"{_SCHEDULE}:_calculate_workloads",
            f"{_BALANCING}:expand_bins_by_splitting",
            f"{_BALANCING}:_split_bin_by_tokens",
        ),
    ),
)
