"""The replacements: number and partitions of the micro-batches are settled before verl makes them."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from types import ModuleType
from typing import Any

#: Takes a rank's integer, and returns the greatest of all ranks.
Agree = Callable[[int], int]

#: What a rank that cannot go on asks for in place of a number of micro-batches: more than any rank has
#: samples, so that a rank without overlay raises too. The number that its error names is added to it.
_INDIVISIBLE, _TOO_LONG = 1 << 40, 1 << 41

#: While `rearrange_micro_batches` runs: the groups of samples that go into each micro-batch.
_settled: ContextVar[list[list[int]] | None] = ContextVar("overlay_micro_batches", default=None)

#: The bounds that this process has said of, that some group is over them.
_warned: set[tuple[int, int]] = set()


class TokenBudgetError(AssertionError, ValueError):
    """No way to keep the bound. verl raises an `AssertionError` there, and from 0.9.1 on a `ValueError`."""


class TokenBudgetWarning(UserWarning):
    """A micro-batch over the bound, of samples that must stay together."""


def make_rearrange(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build `rearrange_micro_batches`: the original, with number and partitions settled beforehand."""

    def rearrange_micro_batches(
        batch: Any,
        max_token_len: Any,
        dp_group: Any = None,
        num_batches_divided_by: int | None = None,
        same_micro_num_in_dp: bool = True,
        min_num_micro_batch: int | None = None,
        use_dynamic_bsz_balance: bool = True,
        force_group_size: int = 1,
    ) -> Any:
        together = module.dist.is_initialized() and same_micro_num_in_dp and dp_group is not None
        partitions = settle(
            *measure(batch, module.calculate_workload, force_group_size),
            cap=int(max_token_len),
            agree=_all_reduce(module, dp_group) if together else int,
            divisor=num_batches_divided_by or 1,
            at_least=min_num_micro_batch or 1,
            group_size=force_group_size,
        )
        rest = {"use_dynamic_bsz_balance": use_dynamic_bsz_balance, "force_group_size": force_group_size}
        return _hand_over(partitions, original, batch, max_token_len, **rest)

    return rearrange_micro_batches


def make_rearrange_ungrouped(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build the same for verl before 0.7.1: without groups, and without `dp_group` among all ranks."""
    return _make_ungrouped(original, module, module.calculate_workload)


def make_rearrange_by_tokens(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build the same for verl before 0.6.1, which balances tokens: it has no estimate of the work."""
    return _make_ungrouped(original, module, lambda lengths: lengths)


def _make_ungrouped(
    original: Callable[..., Any], module: ModuleType, workload: Callable[[Any], Any]
) -> Callable[..., Any]:
    def rearrange_micro_batches(
        batch: Any,
        max_token_len: Any,
        dp_group: Any = None,
        num_batches_divided_by: int | None = None,
        same_micro_num_in_dp: bool = True,
        min_num_micro_batch: int | None = None,
        use_dynamic_bsz_balance: bool = True,
    ) -> Any:
        together = module.dist.is_initialized() and same_micro_num_in_dp
        partitions = settle(
            *measure(batch, workload),
            cap=int(max_token_len),
            agree=_all_reduce(module, dp_group) if together else int,
            divisor=num_batches_divided_by or 1,
            at_least=min_num_micro_batch or 1,
        )
        rest = {"use_dynamic_bsz_balance": use_dynamic_bsz_balance}
        return _hand_over(partitions, original, batch, max_token_len, **rest)

    return rearrange_micro_batches


def _hand_over(
    partitions: list[list[int]], original: Callable[..., Any], batch: Any, max_token_len: Any, **rest: Any
) -> Any:
    """Call the original for what has been settled. It no longer has anything to ask the other ranks."""
    token = _settled.set(partitions)
    try:
        return original(
            batch, max_token_len, same_micro_num_in_dp=False, min_num_micro_batch=len(partitions), **rest
        )
    finally:
        _settled.reset(token)


def make_partitions(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build `get_seqlen_balanced_partitions`: what has been settled, and the original for everybody else."""

    def get_seqlen_balanced_partitions(seqlen_list: Any, k_partitions: int, equal_size: bool) -> Any:
        settled = _settled.get()
        return original(seqlen_list, k_partitions, equal_size) if settled is None else settled

    return get_seqlen_balanced_partitions


def measure(
    batch: Any, workload: Callable[[Any], Any], group_size: int = 1
) -> tuple[int, int, list[int], list[int]]:
    """Return what a batch comes to.

    Args:
        batch: With `input_ids`, nested [samples, tokens] or padded to the width of `attention_mask`.
        workload: Turns tokens per sample into workload per sample, both int64 [samples].
        group_size: How many samples in a row stay together.

    Returns:
        The number of samples; the tokens of the longest, which is the width if they are padded; and the
        tokens and the workload of each group. No groups if the samples do not divide into them.

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
    return (
        samples,
        longest,
        [sum(tokens[start : start + group_size]) for start in starts],
        [sum(costs[start : start + group_size]) for start in starts],
    )


def settle(
    samples: int,
    longest: int,
    tokens: list[int],
    costs: list[int],
    *,
    cap: int,
    agree: Agree,
    divisor: int = 1,
    at_least: int = 1,
    group_size: int = 1,
) -> list[list[int]]:
    """Settle how many micro-batches all ranks take, and what goes into those of this rank.

    Args:
        samples: How many this rank has.
        longest: Tokens of the longest of them, padding included.
        tokens: Of each of this rank's groups.
        costs: Workload of each of this rank's groups, which is balanced.
        cap: Tokens that a micro-batch can hold.
        agree: Is called exactly once, whatever the numbers are.
        divisor: The number of micro-batches is a multiple of it.
        at_least: The number of micro-batches is no less, even if fewer would do.
        group_size: How many samples are in a group.

    Returns:
        For each micro-batch the indices of its groups, at least one. A group over the cap is alone, and is
        warned of once.

    Raises:
        TokenBudgetError: Some rank has a sample over the cap, or samples that do not divide into groups: on
            all ranks. More micro-batches are needed than this rank has groups: on all that have as few.

    """
    from overlay.patches._partition import capped_partitions, fewest_parts

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
    way_out = "Raise the token limit per GPU (max_token_len_per_gpu and its like)"
    if agreed >= _TOO_LONG:
        raise TokenBudgetError(
            f"a sample of {agreed - _TOO_LONG} tokens, padding included, is over max_token_len={cap}. "
            f"{way_out}, or shorten or drop the sample."
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
            f"fill them with. {way_out}, give each rank more samples, or lower what asks for the number."
        )
    if max(tokens) > cap:
        _warn(group_size, max(tokens), cap)
    refused: list[list[int]] = []
    found = capped_partitions(tokens, count, cap, costs=costs, refused=refused)
    # How many verl would take where another rank decides, only that one knows.
    theirs = -(usual // -divisor) * divisor if agreed == need else count
    _count(refused, tokens, costs, cap, count, theirs)
    return found


def _count(
    refused: list[list[int]], tokens: list[int], costs: list[int], cap: int, count: int, usual: int
) -> None:
    """Count a batch, and what verl's own micro-batches of it would have been.

    Args:
        refused: The balanced parts in this number, if they are over the cap.
        tokens: Of each group.
        costs: Of each group.
        cap: Tokens that a micro-batch can hold.
        count: How many micro-batches are taken.
        usual: How many verl would have taken.

    """
    from overlay.patches._partition import karmarkar_karp
    from overlay.patches._partition.counted import count_split
    from overlay.patches.verl.strict_token_budget.effect import EFFECT

    EFFECT.calls += 1
    if usual == count and not refused:
        return
    theirs = refused if usual == count else karmarkar_karp(costs, usual, equal_size=False)
    count_split(EFFECT, theirs, tokens, cap)


def _warn(group_size: int, tokens: int, cap: int) -> None:
    """Say once for a bound that some group is over it."""
    import warnings

    if (group_size, cap) in _warned:
        return
    _warned.add((group_size, cap))
    warnings.warn(
        f"{group_size} samples that must stay together (force_group_size) have {tokens} tokens, over "
        f"max_token_len={cap}. Such a group is a micro-batch of its own. If that runs out of memory, raise "
        "the token limit per GPU (max_token_len_per_gpu and its like), or shorten or drop samples.",
        TokenBudgetWarning,
        stacklevel=4,
    )


def _all_reduce(module: ModuleType, group: Any) -> Agree:
    """Return the function that asks the ranks of `group`, or all ranks if that is `None`."""

    def agree(own: int) -> int:
        import torch

        # As the original asks, so that ranks with the patch and without it understand each other.
        shared = torch.tensor([own], device=module.get_device_name())
        module.dist.all_reduce(shared, op=module.dist.ReduceOp.MAX, group=group)
        return int(shared.item())

    return agree
