"""`verl.strict-token-budget`: no micro-batch over `max_token_len`, and all ranks agree how many there are.

Number and partitions are settled before verl's `rearrange_micro_batches` runs, in verl's own all-reduce of
one integer. A rank with a sample over the limit, or with samples that do not divide into groups, asks for
more micro-batches than anybody has samples, and all raise. A rank with too few samples for the number that
was agreed raises, alone if the others have enough.
"""

from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from inspect import signature
from typing import Any

from overlay import log
from overlay.compat.projects import VERL
from overlay.patch import Patch, around, one_target, replaced, variant
from overlay.patches._partition.counted import count_split, split_effect

EFFECT = split_effect(__name__, "batch", "verl", did="split otherwise")

#: What a rank asks for in place of a number of micro-batches if none would fit its samples: more than any
#: rank has samples, so that a rank without overlay raises too. To it is added the number that its error
#: names.
_INDIVISIBLE, _TOO_LONG = 1 << 40, 1 << 41
_LIMIT = "the token limit per GPU (max_token_len_per_gpu and its like)"

#: While `rearrange_micro_batches` runs: the groups of samples that go into each micro-batch.
_settled: ContextVar[list[list[int]] | None] = ContextVar("overlay_micro_batches", default=None)


class TokenBudgetError(AssertionError, ValueError):
    """No way to keep the bound. verl raises an `AssertionError` there, and from 0.9.1 on a `ValueError`."""


def make_rearrange(original: Any, module: Any) -> Any:
    """Settle number and partitions first, so that the original has nothing to ask the other ranks."""
    import torch

    parameters = signature(original)
    # verl before 0.7.1 has no groups, and asks all ranks if it is given no process group.
    has_groups = "force_group_size" in parameters.parameters

    @wraps(original)
    def rearrange_micro_batches(*args: Any, **kwargs: Any) -> Any:
        bound = parameters.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        group_size, group = given.get("force_group_size", 1), given["dp_group"]
        asks = given["same_micro_num_in_dp"] and not (has_groups and group is None)

        def agree(own: int) -> int:
            # As the original asks, so that ranks with the patch and without it understand each other.
            shared = torch.tensor([own], device=module.get_device_name())
            module.dist.all_reduce(shared, op=module.dist.ReduceOp.MAX, group=group)
            return int(shared.item())

        settled = settle(
            *measure(given["batch"], module.calculate_workload, group_size),
            cap=int(given["max_token_len"]),
            agree=agree if asks and module.dist.is_initialized() else int,
            divisor=given["num_batches_divided_by"] or 1,
            at_least=given["min_num_micro_batch"] or 1,
            group_size=group_size,
        )
        given.update(
            dp_group=None,
            num_batches_divided_by=None,
            same_micro_num_in_dp=False,
            min_num_micro_batch=len(settled),
        )
        token = _settled.set(settled)
        try:
            return original(**given)
        finally:
            _settled.reset(token)

    return rearrange_micro_batches


@around
def partitions(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Return what has been settled, and ask the original for everybody else."""
    settled = _settled.get()
    return original(*args, **kwargs) if settled is None else settled


def measure(
    batch: Any, workload: Callable[[Any], Any], group_size: int = 1
) -> tuple[int, int, list[int], list[int]]:
    """Return the number of samples, the tokens of the longest, and tokens and workload of each group.

    `input_ids` are nested [samples, tokens], or padded to the width of `attention_mask`, which then is the
    longest. `workload` is of int64 [samples]. There are no groups if their size does not divide the samples.
    """
    import torch

    ids = batch["input_ids"]
    if ids.is_nested:
        lengths, width = ids.offsets().diff(), 0
    else:
        mask = batch["attention_mask"]
        lengths, width = mask.sum(dim=1), mask.shape[-1]
    lengths = lengths.long()
    tokens, costs = torch.stack([lengths, workload(lengths)]).tolist()
    samples, longest = len(tokens), max(width, *tokens, 0)
    starts = range(0, 0 if samples % group_size else samples, group_size)
    by_group = [[sum(each[start : start + group_size]) for start in starts] for each in (tokens, costs)]
    return samples, longest, by_group[0], by_group[1]


def settle(
    samples: int,
    longest: int,
    tokens: list[int],
    costs: list[int],
    *,
    cap: int,
    agree: Callable[[int], int],
    divisor: int = 1,
    at_least: int = 1,
    group_size: int = 1,
) -> list[list[int]]:
    """Return the indices of the groups in each micro-batch, at least one, as many micro-batches on all ranks.

    A group over the cap is alone, and is warned of once.

    The first four are as from `measure`. `agree` takes a rank's integer and returns the greatest of all
    ranks, and is called exactly once. The number of micro-batches is a multiple of `divisor`, and `at_least`
    so many even if fewer would do.

    Raises `TokenBudgetError` on all ranks if some rank has a sample over the cap, or samples that do not
    divide into groups; and where a rank has fewer groups than there are to be micro-batches.
    """
    from overlay.patches._partition import capped_partitions, fewest_parts, karmarkar_karp

    groups, longest = len(tokens), max(longest, 1)
    usual = need = max(at_least, 1)
    if need < groups and longest <= cap:
        # No fewer than the original takes, which a group over the cap would otherwise allow.
        usual = max(need, min(groups, -(-sum(tokens) // cap)))
        need = fewest_parts(tokens, cap, at_least=usual, costs=costs)
    asked = need if samples % group_size == 0 else _INDIVISIBLE + samples
    if longest > cap:
        asked = _TOO_LONG + longest
    agreed = agree(asked)
    if agreed >= _TOO_LONG:
        raise TokenBudgetError(
            f"a sample of {agreed - _TOO_LONG} tokens, padding included, is over max_token_len={cap}. "
            f"Raise {_LIMIT}, or shorten or drop the sample."
        )
    if agreed >= _INDIVISIBLE:
        raise TokenBudgetError(
            f"{agreed - _INDIVISIBLE} samples do not divide into groups of force_group_size={group_size}. "
            "Change the batch size or force_group_size."
        )
    count = -(agreed // -divisor) * divisor
    if count > groups:
        raise TokenBudgetError(
            f"{count} micro-batches are needed (max_token_len={cap}, num_batches_divided_by={divisor}, "
            f"min_num_micro_batch={at_least}), and this rank has only {groups} groups of {group_size} to "
            f"fill them with. Raise {_LIMIT}, give each rank more samples, or lower what asks for the number."
        )
    if max(tokens) > cap:
        log.warning(
            f"{group_size} samples that must stay together (force_group_size) have more tokens than "
            f"max_token_len={cap}, so they are a micro-batch of their own. If that runs out of memory, raise "
            f"{_LIMIT}, or shorten or drop samples"
        )
    refused: list[list[int]] = []
    found = capped_partitions(tokens, count, cap, costs=costs, refused=refused)
    # How many verl would take where another rank decides, only that one knows.
    theirs = -(usual // -divisor) * divisor if agreed == need else count
    EFFECT.calls += 1
    if theirs != count:
        count_split(EFFECT, karmarkar_karp(costs, theirs, equal_size=False), tokens, cap)
    elif refused:
        count_split(EFFECT, refused, tokens, cap)
    return found


_HOME = "verl.utils.seqlen_balancing"

PATCH = Patch(
    id="verl.strict-token-budget",
    summary="No micro-batch over max_token_len, agreed among the ranks in one all-reduce",
    why="With dynamic batch sizes verl takes ceil(tokens / max_token_len) micro-batches and balances work "
    "over them, so that some exceed max_token_len: eight samples of 7 tokens and a limit of 8 give one of "
    "14, and runs die of memory that fit. A rank that cannot go on raises alone, and the others hang in "
    "their next collective. With the patch there are as few micro-batches as it finds to keep the bound "
    "with, never more than 0.9.1 takes, balanced by work, and as many on each rank. A sample over the limit, "
    "or samples that do not divide into groups, are an error on every rank. Samples that must stay together "
    "and exceed the limit go alone, with a warning. A rank without the patch goes along. With virtual stages "
    "the number is rounded up to a multiple of num_batches_divided_by: a rank with too few samples for it "
    "raises TokenBudgetError, as 0.9.1 raises, where verl 0.6 to 0.9.0 goes over the limit.",
    evidence="verl 0.9.1 adds micro-batches too until each keeps max_token_len (#7553). What verl divides "
    "within the limit stays as it is, which the contract compares.",
    changes=("numbers", "memory", "hangs"),
    met="use_dynamic_bsz=True. Where a loss is a sum over the batch, only rounding changes. Where it is a "
    "mean over each micro-batch (the legacy workers: verl 0.6, and 0.7 with use_legacy_worker_impl other "
    "than disable; a critic of verl 0.7 and 0.8 without verl.critic-loss-scale) gradients change too.",
    upstream=("verl-project/verl#7553", "verl-project/verl#6735"),
    targets=one_target(
        VERL,
        variant(
            "0.6.1",
            replaced(f"{_HOME}:rearrange_micro_batches", make_rearrange),
            replaced(f"{_HOME}:get_seqlen_balanced_partitions", partitions),
            # Its result comes out where it keeps the bound, and is computed here.
            f"{_HOME}:karmarkar_karp",
            # Its result shares a tensor with the lengths: of another type, it would change those.
            f"{_HOME}:calculate_workload",
        ),
    ),
)
