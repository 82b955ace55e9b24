"""`verl.strict-token-budget`: no micro-batch over `max_token_len`, and all ranks agree how many there are.

`rearrange_micro_batches` takes as many micro-batches as the tokens would need if samples could be cut, and
balances workload over them, whatever their tokens then come to. Two facts make a copy of it unnecessary: it
never takes fewer than `min_num_micro_batch`, and what goes where is what `get_seqlen_balanced_partitions`
returns. So number and partitions are settled before it is called, and a context variable hands it the latter.

The ranks settle the number in one all-reduce, in place of the original's. What a rank cannot do goes along in
it: either all ranks raise or none does. Samples that must stay together may exceed the bound: these releases
compute them, so they go alone, with a warning.
"""

from __future__ import annotations

from overlay.compat.projects import VERL
from overlay.patch import Absent, Known, Patch, Removal, Replacement, Target, Variant
from overlay.patches.verl.strict_token_budget.fix import (
    TokenBudgetError,
    TokenBudgetWarning,
    make_partitions,
    make_rearrange,
    make_rearrange_by_tokens,
    make_rearrange_ungrouped,
)

#: The names by which jobs catch and filter what the patch says.
__all__ = ["PATCH", "TokenBudgetError", "TokenBudgetWarning"]

_HOME = "verl.utils.seqlen_balancing"
_REARRANGE, _PARTITIONS = f"{_HOME}:rearrange_micro_batches", f"{_HOME}:get_seqlen_balanced_partitions"

#: What is the same in 0.6.1 to 0.9.1.
_BALANCED = Known(site=_PARTITIONS, digests=("d0c76e9f70df",))
#: Upstream's own result comes out where it keeps the bound, and is computed here: this is replaced in truth.
_PARTITIONER = Known(site=f"{_HOME}:karmarkar_karp", digests=("b58b1f6d67e3", "ce0da6487c5b"))
#: One line, of which the result shares a tensor with the lengths: of another type, it would change those.
_WORKLOAD = Known(site=f"{_HOME}:calculate_workload", digests=("edbfe6066352", "4b08f85620bb"))

#: 0.6.1 and 0.7.0; commits before 0.7.1.
_UNGROUPED = ("bcc9f2a2a825", "b8d809787560", "94c3d1714a12", "ffd9ac354acb")

PATCH = Patch(
    id="verl.strict-token-budget",
    revision=1,
    summary="No micro-batch over max_token_len, agreed among the ranks in one all-reduce",
    why=(
        "With dynamic batch sizes verl takes ceil(tokens / max_token_len) micro-batches and balances work "
        "over them, so that some exceed max_token_len: eight samples of 7 tokens and a limit of 8 give one "
        "of 14, and runs die of memory that fit. A rank that cannot go on raises alone, and the others hang "
        "in their next collective. With the patch there are as few micro-batches as it finds to keep the "
        "bound with, never more than 0.9.1 takes, balanced by work, and as many on each rank. What cannot "
        "be done is one error on every rank. Samples that must stay together and exceed it go alone, with a "
        "warning."
    ),
    changes=("memory", "hangs"),
    met="use_dynamic_bsz=True. Sums over other micro-batches round otherwise.",
    upstream=("verl-project/verl#7553", "verl-project/verl#6735"),
    remove=Removal(
        version="0.9.1",
        when="rearrange_micro_batches adds micro-batches until its partitions keep max_token_len",
        test="tests/real/test_contracts.py::test_upstream_alone_keeps_the_contract",
    ),
    targets=(
        Target(
            project=VERL,
            variants=(
                Variant(
                    name="0.7.1",
                    versions=">=0.5.0.dev0,<0.11.0.dev0",
                    shape=(
                        Known(site=_REARRANGE, digests=("35fa5bbadad2",)),
                        _BALANCED,
                        _PARTITIONER,
                        _WORKLOAD,
                    ),
                    replacements=(
                        Replacement(site=_REARRANGE, make=make_rearrange),
                        Replacement(site=_PARTITIONS, make=make_partitions),
                    ),
                ),
                Variant(
                    name="0.6.1",
                    versions=">=0.5.0.dev0,<0.9.0.dev0",
                    shape=(
                        Known(site=_REARRANGE, digests=_UNGROUPED),
                        _BALANCED,
                        _PARTITIONER,
                        _WORKLOAD,
                    ),
                    replacements=(
                        Replacement(site=_REARRANGE, make=make_rearrange_ungrouped),
                        Replacement(site=_PARTITIONS, make=make_partitions),
                    ),
                ),
                Variant(
                    name="before 0.6.1",
                    versions=">=0.5.0.dev0,<0.8.0.dev0",
                    shape=(
                        Known(site=_REARRANGE, digests=("cb1c831eb16b",)),
                        _BALANCED,
                        _PARTITIONER,
                        Absent(site=f"{_HOME}:calculate_workload"),
                    ),
                    replacements=(
                        Replacement(site=_REARRANGE, make=make_rearrange_by_tokens),
                        Replacement(site=_PARTITIONS, make=make_partitions),
                    ),
                ),
                Variant(
                    name="0.9.1",
                    versions=">=0.9.1.dev0",
                    verdict="fixed-upstream",
                    shape=(Known(site=_REARRANGE, digests=("102c7407b130",)),),
                    reason="verl adds micro-batches itself until each keeps max_token_len",
                ),
            ),
        ),
    ),
)
