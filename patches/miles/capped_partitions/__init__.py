"""`miles.capped-partitions`: balanced by FLOPs under the budget of a micro-batch, not instead of it.

miles packs a step in the middle of `build_dp_schedule`. What it looks up there by name are the count of
operations, which sees the tokens of the samples, and the split by that count, which does not: the one tells
the other.
"""

from __future__ import annotations

from overlay.compat.projects import MILES
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches.miles.capped_partitions.fix import make_schedule, make_split, make_workloads

_BALANCING = "miles.utils.seqlen_balancing"
_SCHEDULE = "miles.utils.dp_schedule"

PATCH = Patch(
    id="miles.capped-partitions",
    summary="No micro-batch over max_tokens_per_gpu with --balance-by-flops, and all of them balanced",
    why=(
        "With --balance-by-flops, miles balances samples over micro-batches by their operations and "
        "without regard to max_tokens_per_gpu: a micro-batch may exceed the budget, which is out of memory "
        "some steps into a run. With the patch every micro-batch holds the budget, but for a single sample "
        "that is longer or a step of too few samples for the number that Megatron asks for, none is empty, "
        "and they are balanced by FLOPs as far as the budget allows. Where miles' own result holds the "
        "budget, it is kept."
    ),
    changes=("memory", "numbers"),
    met="--use-dynamic-batch-size with --balance-by-flops. Sums over other micro-batches round otherwise.",
    upstream=("THUDM/slime#1951",),
    evidence=(
        "miles' own packing without --balance-by-flops keeps max_tokens_per_gpu, beyond which memory runs "
        "out. Sums over micro-batches are the same up to rounding."
    ),
    targets=one_target(
        MILES,
        variant(
            "0.1",
            replaced(f"{_SCHEDULE}:build_dp_schedule", make_schedule),
            replaced(f"{_SCHEDULE}:_calculate_workloads", make_workloads),
            replaced(f"{_SCHEDULE}:get_seqlen_balanced_partitions", make_split),
            f"{_BALANCING}:get_seqlen_balanced_partitions",
            f"{_BALANCING}:expand_bins_by_splitting",
            f"{_BALANCING}:_split_bin_by_tokens",
        ),
    ),
)
