"""`verl.strict-token-budget`: no micro-batch over `max_token_len`, and all ranks agree how many there are.

`rearrange_micro_batches` takes as many micro-batches as the tokens would need if samples could be cut, and
balances workload over them, whatever their tokens then come to. Two facts make a copy of it unnecessary: it
never takes fewer than `min_num_micro_batch`, and what goes where is what `get_seqlen_balanced_partitions`
returns. So number and partitions are settled before it is called, and a context variable hands it the latter.

The ranks settle the number in the original's own all-reduce of one integer, so a rank without overlay goes
along. A rank that cannot go on asks for more micro-batches than anybody has samples, and all ranks raise.
Samples that must stay together may exceed the bound: these releases compute them, so they go alone, with a
warning.
"""

from __future__ import annotations

from overlay.compat.projects import VERL
from overlay.patch import Absent, Patch, one_target, replaced, variant
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
_BALANCED = (
    replaced(_PARTITIONS, make_partitions),
    # Upstream's own result comes out where it keeps the bound, and is computed here: this is what is replaced
    # in truth.
    f"{_HOME}:karmarkar_karp",
)
#: One line, of which the result shares a tensor with the lengths: of another type, it would change those.
_WORKLOAD = f"{_HOME}:calculate_workload"

PATCH = Patch(
    id="verl.strict-token-budget",
    revision=2,
    summary="No micro-batch over max_token_len, agreed among the ranks in one all-reduce",
    why=(
        "With dynamic batch sizes verl takes ceil(tokens / max_token_len) micro-batches and balances work "
        "over them, so that some exceed max_token_len: eight samples of 7 tokens and a limit of 8 give one "
        "of 14, and runs die of memory that fit. A rank that cannot go on raises alone, and the others hang "
        "in their next collective. With the patch there are as few micro-batches as it finds to keep the "
        "bound with, never more than 0.9.1 takes, balanced by work, and as many on each rank. A sample "
        "over the limit, or samples that do not divide into groups, are an error on every rank. Ranks ask "
        "each other as verl's own do, so a rank without the patch goes along. Samples that must stay "
        "together and exceed the limit go alone, with a warning."
    ),
    evidence=(
        "verl 0.9.1 adds micro-batches too until each keeps max_token_len (#7553). What verl divides within "
        "the limit stays as it is, which the contract compares."
    ),
    changes=("numbers", "memory", "hangs"),
    met=(
        "use_dynamic_bsz=True. Where a loss is a sum over the batch, sums over other micro-batches round "
        "otherwise. Where it is a mean over each micro-batch, as in the legacy workers (verl 0.6, and 0.7 "
        "with use_legacy_worker_impl other than disable) and for a critic of verl 0.7 and 0.8 without "
        "verl.critic-loss-scale, gradients depend on the micro-batches, and change with them."
    ),
    upstream=("verl-project/verl#7553", "verl-project/verl#6735"),
    targets=one_target(
        VERL,
        variant(
            "0.7.1",
            replaced(_REARRANGE, make_rearrange),
            *_BALANCED,
            _WORKLOAD,
        ),
        variant(
            "0.6.1",
            replaced(_REARRANGE, make_rearrange_ungrouped),
            *_BALANCED,
            _WORKLOAD,
        ),
        variant(
            "before 0.6.1",
            replaced(_REARRANGE, make_rearrange_by_tokens),
            *_BALANCED,
            Absent(site=f"{_HOME}:calculate_workload"),
        ),
    ),
)
