"""`slime.vpp-ceiling`: the number of micro-batches is rounded up for virtual pipeline stages, not down.

slime takes the greatest of the ranks' numbers and rounds it down to a multiple of the group size: in groups
of 4, a step that needs 7 micro-batches gets 4. Here every rank rounds its own number before they are
compared. The greatest of multiples is a multiple, and rounding that does nothing. A rank that has fewer
samples than a group says so with a number greater than that of its samples. All ranks have as many samples,
get that number, and raise the same error (in `slime.capped-partitions`): none is left waiting for another.
"""

from __future__ import annotations

from overlay.compat.projects import SLIME
from overlay.patch import Absent, Patch, Present, Removal, known, one_target, replaced, superseded, variant
from overlay.patches._slime_step import DATA, ITERATOR_0_1, ITERATOR_0_2, ITERATOR_CAPPED
from overlay.patches.slime.vpp_ceiling.fix import make_config, make_count, make_count_0_1, make_count_286

# The digests of `get_data_iterator` stay, though it is only relied on: that the greatest number is taken once
# it has been counted, and which way it is rounded then, decides what the count has to be. They cost nothing:
# `slime.capped-partitions`, without which this patch is not applied, replaces that function.
_COUNT = f"{DATA}:get_minimum_num_micro_batch_size"
#: What the import of it stands for, and so what is replaced in truth. v0.2.0; v0.2.1 to v0.2.4
_COUNTED = known("slime.utils.data:get_minimum_num_micro_batch_size", "546f311aa637", "2479fd9ce149")

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
    remove=Removal(
        version="0.3.0",
        when="slime 0.3.0 packs first and aligns upwards",
        test="tests/real/test_contracts.py::test_upstream_alone_keeps_the_contract",
    ),
    requires=("slime.capped-partitions",),
    targets=one_target(
        SLIME,
        # v0.1.0 calls itself 0.0.1, and v0.2.4 0.2.3.
        variant(
            "0.1",
            ">=0.0.1.dev0,<0.2.0.dev0",
            known(f"{DATA}:get_data_iterator", ITERATOR_0_1),
            replaced(_COUNT, make_count_0_1, "b550812ce342"),
            known("slime.backends.utils.data:get_minimum_num_micro_batch_size", "1b038a3cab90"),
            replaced(f"{DATA}:get_model_config", make_config, "876af8b0ac8d"),
        ),
        variant(
            "0.2",
            ">=0.1.0.dev0,<0.3.0.dev0",
            known(f"{DATA}:get_data_iterator", *ITERATOR_0_2),
            replaced(_COUNT, make_count, "6d6d2b239aef"),
            _COUNTED,
        ),
        variant(
            "286750aa3",
            ">=0.2.4.dev0,<0.3.0.dev0",
            known(f"{DATA}:get_data_iterator", ITERATOR_CAPPED),
            replaced(_COUNT, make_count_286, "6d6d2b239aef"),
            _COUNTED,
        ),
        superseded(
            "0.3",
            ">=0.3.0.dev0",
            Present(site="slime.utils.dp_schedule:build_dp_schedule"),
            Absent(site=_COUNT),
            reason="slime 0.3 packs first and aligns upwards, before it deals out to the ranks",
        ),
    ),
)
