"""`slime.vpp-ceiling`: the number of micro-batches is rounded up for virtual pipeline stages, not down.

slime takes the greatest of the ranks' numbers and rounds it down to a multiple of the group size: in groups
of 4, a step that needs 7 micro-batches gets 4. Here every rank rounds its own number before they are
compared. The greatest of multiples is a multiple, and rounding that does nothing. A rank that has fewer
samples than a group says so with a number greater than that of its samples. All ranks have as many samples,
get that number, and raise the same error (in `slime.capped-partitions`): none is left waiting for another.
"""

from __future__ import annotations

from overlay.compat.projects import SLIME
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches._slime_step import DATA
from overlay.patches.slime.vpp_ceiling.fix import make_config, make_count, make_count_0_1, make_count_286

# The digests of `get_data_iterator` stay, though it is only relied on: that the greatest number is taken once
# it has been counted, and which way it is rounded then, decides what the count has to be. They cost nothing:
# `slime.capped-partitions`, without which this patch is not applied, replaces that function.
_COUNT = f"{DATA}:get_minimum_num_micro_batch_size"
#: What the import of it stands for, and so what is replaced in truth. v0.2.0; v0.2.1 to v0.2.4
_COUNTED = "slime.utils.data:get_minimum_num_micro_batch_size"

PATCH = Patch(
    id="slime.vpp-ceiling",
    summary="Round the number of micro-batches up, not down, for virtual pipeline stages",
    why=(
        "With virtual pipeline stages the number of micro-batches must be a multiple of a group size. slime "
        "rounds it down: in groups of 4, a step that needs 7 micro-batches for its budget gets 4, which hold "
        "almost twice as many tokens, and one that needs 3 gets 1, which Megatron refuses. With the patch "
        "the number is rounded up on every rank, before the ranks agree on the greatest. If a step has too "
        "few samples for that, slime's own number stays, with a warning; if it has fewer than a group, all "
        "ranks raise one error that says what to change."
    ),
    changes=("memory", "crashes"),
    met="--use-dynamic-batch-size with virtual pipeline stages.",
    upstream=("THUDM/slime#1823", "THUDM/slime#1848", "THUDM/slime#1951"),
    evidence=(
        "Megatron refuses a number that is no multiple of the group size. slime's commit 286750a (#1823) "
        "rounds up, and so does its schedule since 0.3.0."
    ),
    requires=("slime.capped-partitions",),
    targets=one_target(
        SLIME,
        variant(
            "0.1",
            f"{DATA}:get_data_iterator",
            replaced(_COUNT, make_count_0_1),
            "slime.backends.utils.data:get_minimum_num_micro_batch_size",
            replaced(f"{DATA}:get_model_config", make_config),
        ),
        variant(
            "0.2",
            f"{DATA}:get_data_iterator",
            replaced(_COUNT, make_count),
            _COUNTED,
        ),
        variant(
            "286750aa3",
            f"{DATA}:get_data_iterator",
            replaced(_COUNT, make_count_286),
            _COUNTED,
        ),
        tells=("slime.utils.dp_schedule:build_dp_schedule",),
    ),
)
