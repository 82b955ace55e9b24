"""`slime.capped-partitions`: no micro-batch holds more tokens than the budget, and they stay balanced.

slime counts with first fit how many micro-batches a step needs, and then balances the samples over that
many by Karmarkar-Karp, which knows no budget. Where the balanced result holds it, that very result is
returned; else the samples are split anew under the budget. Splitting is arithmetic of one rank on a number
that all ranks have agreed on: nothing here is a collective.
"""

from __future__ import annotations

from overlay.compat.projects import SLIME
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches._slime_step import DATA
from overlay.patches.slime.capped_partitions.fix import (
    make_capped,
    make_iterator,
    make_pack,
    make_schedule,
    make_split,
)

_BALANCING = "slime.utils.seqlen_balancing"
_SCHEDULE = "slime.utils.dp_schedule"

#: The import of it, and what is imported: that is what is replaced in truth.
_BALANCED = (
    replaced(f"{DATA}:get_seqlen_balanced_partitions", make_split),
    # v0.1.0 and v0.2.0; v0.2.1; v0.2.2 to v0.3.1
    f"{_BALANCING}:get_seqlen_balanced_partitions",
)

PATCH = Patch(
    id="slime.capped-partitions",
    summary="No micro-batch over max_tokens_per_gpu, and all of them balanced",
    why=(
        "With use_dynamic_batch_size, slime balances samples over micro-batches without regard to "
        "max_tokens_per_gpu, and a micro-batch may exceed the budget: out of memory, some steps into a run. "
        "Upstream's cure (slime#1823) fails on a sample longer than the budget, leaves micro-batches empty "
        "and was reverted; slime 0.3.1 has the defect again with --balance-by-flops. With the patch every "
        "micro-batch holds the budget, but for a single sample that is longer or a step of too few samples "
        "for the number that Megatron asks for, none is empty, and they are "
        "balanced as far as the budget allows. Where slime's own result holds the budget, it is kept."
    ),
    changes=("memory", "numbers"),
    met=(
        "--use-dynamic-batch-size; in 0.3.1 with --balance-by-flops only. "
        "Sums over other micro-batches round otherwise."
    ),
    upstream=(
        "THUDM/slime#1823",
        "THUDM/slime#1838",
        "THUDM/slime#1839",
        "THUDM/slime#1848",
        "THUDM/slime#1951",
    ),
    evidence=(
        "slime's quick start calls max_tokens_per_gpu the maximum per GPU, which only a single longer "
        "sample exceeds, and its commit 286750a (#1823) split under it. Sums over micro-batches are the "
        "same up to rounding."
    ),
    targets=one_target(
        SLIME,
        variant(
            "0.1-0.2",
            replaced(f"{DATA}:get_data_iterator", make_iterator),
            *_BALANCED,
        ),
        variant(
            "286750aa3",
            replaced(f"{DATA}:get_data_iterator", make_iterator),
            replaced(f"{DATA}:_get_capped_partitions", make_capped),
            *_BALANCED,
        ),
        variant(
            "0.3.1",
            replaced(f"{_SCHEDULE}:_pack_step_into_mbs", make_pack),
            replaced(f"{_SCHEDULE}:build_dp_schedule", make_schedule),
            f"{_SCHEDULE}:_calculate_workloads",
            f"{_BALANCING}:expand_bins_by_splitting",
            f"{_BALANCING}:_split_bin_by_tokens",
        ),
    ),
)
