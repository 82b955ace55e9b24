"""`slime.vpp-ceiling`: the number of micro-batches is rounded up for virtual pipeline stages, not down.

slime takes the greatest of the ranks' numbers and rounds it down to a multiple of the group size: in groups
of 4, a step that needs 7 micro-batches gets 4. Here every rank rounds its own number before they are
compared. The greatest of multiples is a multiple, and rounding that does nothing. A rank for which no
multiple will do says so with a number greater than that of its samples. All ranks have as many samples, get
that number, and raise the same error (in `slime.capped-partitions`): none is left waiting for another.
"""

from __future__ import annotations

from overlay.compat.projects import SLIME
from overlay.patch import Absent, Known, Patch, Present, Removal, Replacement, Target, Variant
from overlay.patches._slime_step import DATA, ITERATOR_0_1, ITERATOR_0_2, ITERATOR_CAPPED
from overlay.patches.slime.vpp_ceiling.fix import make_config, make_count, make_count_0_1, make_count_286

# The digests of `get_data_iterator` stay, though it is only relied on: that the greatest number is taken once
# it has been counted, and which way it is rounded then, decides what the count has to be. They cost nothing:
# `slime.capped-partitions`, without which this patch is not applied, replaces that function.
_COUNT = f"{DATA}:get_minimum_num_micro_batch_size"
#: The import of it, and what is imported: that is what is replaced in truth.
_COUNTED = (
    Known(site=_COUNT, digests=("6d6d2b239aef",)),
    # v0.2.0; v0.2.1 to v0.2.4
    Known(
        site="slime.utils.data:get_minimum_num_micro_batch_size",
        digests=("546f311aa637", "2479fd9ce149"),
    ),
)

PATCH = Patch(
    id="slime.vpp-ceiling",
    revision=1,
    summary="Round the number of micro-batches up, not down, for virtual pipeline stages",
    why=(
        "With virtual pipeline stages the number of micro-batches must be a multiple of a group size. slime "
        "rounds it down: in groups of 4, a step that needs 7 micro-batches for its budget gets 4, which hold "
        "almost twice as many tokens, and one that needs 3 gets 1, which Megatron refuses. With the patch "
        "the number is rounded up on every rank, before the ranks agree on the greatest. If no multiple "
        "holds the budget with the samples of a step, all ranks raise one error that says what to change."
    ),
    changes=("memory", "crashes"),
    met="--use-dynamic-batch-size with virtual pipeline stages.",
    upstream=("THUDM/slime#1823", "THUDM/slime#1848", "THUDM/slime#1951"),
    remove=Removal(
        version="0.3.0",
        when="slime 0.3.0 packs first and aligns upwards",
        test="tests/real/test_contracts.py::test_upstream_alone_keeps_the_contract",
    ),
    requires=("slime.capped-partitions",),
    targets=(
        Target(
            project=SLIME,
            variants=(
                # v0.1.0 calls itself 0.0.1, and v0.2.4 0.2.3.
                Variant(
                    name="0.1",
                    versions=">=0.0.1.dev0,<0.2.0.dev0",
                    shape=(
                        Known(site=f"{DATA}:get_data_iterator", digests=(ITERATOR_0_1,)),
                        Known(site=_COUNT, digests=("b550812ce342",)),
                        Known(
                            site="slime.backends.utils.data:get_minimum_num_micro_batch_size",
                            digests=("1b038a3cab90",),
                        ),
                        Known(site=f"{DATA}:get_model_config", digests=("876af8b0ac8d",)),
                    ),
                    replacements=(
                        Replacement(site=_COUNT, make=make_count_0_1),
                        Replacement(site=f"{DATA}:get_model_config", make=make_config),
                    ),
                ),
                Variant(
                    name="0.2",
                    versions=">=0.1.0.dev0,<0.3.0.dev0",
                    shape=(Known(site=f"{DATA}:get_data_iterator", digests=ITERATOR_0_2), *_COUNTED),
                    replacements=(Replacement(site=_COUNT, make=make_count),),
                ),
                Variant(
                    name="286750aa3",
                    versions=">=0.2.4.dev0,<0.3.0.dev0",
                    shape=(Known(site=f"{DATA}:get_data_iterator", digests=(ITERATOR_CAPPED,)), *_COUNTED),
                    replacements=(Replacement(site=_COUNT, make=make_count_286),),
                ),
                Variant(
                    name="0.3",
                    versions=">=0.3.0.dev0",
                    verdict="superseded",
                    shape=(Present(site="slime.utils.dp_schedule:build_dp_schedule"), Absent(site=_COUNT)),
                    reason="slime 0.3 packs first and aligns upwards, before it deals out to the ranks",
                ),
            ),
        ),
    ),
)
