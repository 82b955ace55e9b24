"""What takes the place of slime's count of micro-batches: the count, rounded for virtual stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

from overlay.patches._slime_step import current


def rounded(lengths: Sequence[int], count: int) -> int:
    """Return the number of micro-batches into which a rank splits a step, as a multiple of the group size.

    Args:
        lengths: Tokens of each sample of the step, at least one sample.
        count: Micro-batches that first fit needs.

    Returns:
        slime's own number, which is `count` rounded down, if the samples can be split into that many under
        the budget; else `count` rounded up. If that is more than there are samples, no multiple holds the
        budget: it is slime's own number, or where that is no multiple either, one that all ranks refuse.
        Outside of `get_data_iterator`, `count`.

    """
    if (step := current.get()) is None:
        return count
    from overlay.patches.slime.vpp_ceiling.effect import EFFECT

    EFFECT.calls += 1
    budget, group = step
    lower = count // group * group
    if lower == count or _splits(lengths, lower, budget):
        return lower
    if lower and lower + group > len(lengths):
        # A step that slime trains on, if memory lets it. `slime.capped-partitions` says that it is over.
        return lower
    # slime takes one at least.
    EFFECT.changed += 1
    EFFECT.more += lower + group - max(lower, 1)
    return lower + group


def rounded_up(lengths: Sequence[int], count: int) -> int:
    """Return the same for the slime of commit 286750aa3, whose own number is `count` rounded up."""
    if (step := current.get()) is None:
        return count
    upper = -(-count // step[1]) * step[1]
    if upper <= len(lengths):
        return upper
    found = rounded(lengths, count)
    # A split over the budget would fail, on this rank alone. Of more parts than samples it fails on all.
    return found if _splits(lengths, found, step[0]) else upper


def _splits(lengths: Sequence[int], parts: int, budget: int) -> bool:
    """Tell whether `slime.capped-partitions` can split the samples into that many parts."""
    from overlay.patches._partition import capped_partitions

    try:
        capped_partitions(lengths, parts, budget)
    except ValueError:
        return False
    return True


def make_count(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build the `get_minimum_num_micro_batch_size` of slime 0.2: what first fit needs, rounded."""

    def get_minimum_num_micro_batch_size(total_lengths: Sequence[int], max_tokens_per_gpu: int) -> int:
        return rounded(total_lengths, original(total_lengths, max_tokens_per_gpu))

    return get_minimum_num_micro_batch_size


def make_count_286(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build the same for commit 286750aa3, which rounds up by itself, but past the samples there are."""

    def get_minimum_num_micro_batch_size(total_lengths: Sequence[int], max_tokens_per_gpu: int) -> int:
        return rounded_up(total_lengths, original(total_lengths, max_tokens_per_gpu))

    return get_minimum_num_micro_batch_size


def make_count_0_1(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build the same for slime 0.1, where it is given the context parallel size."""

    def get_minimum_num_micro_batch_size(
        total_lengths: Sequence[int], max_tokens_per_gpu: int, cp_size: int
    ) -> int:
        return rounded(total_lengths, original(total_lengths, max_tokens_per_gpu, cp_size))

    return get_minimum_num_micro_batch_size


def make_config(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build the `get_model_config` of slime 0.1, which aligns without virtual pipeline stages too.

    Megatron sets the group size to the pipeline parallel size where there are no virtual stages, and then
    needs no alignment. The group size is all that `get_data_iterator` reads of the configuration.
    """

    def get_model_config(model: Any) -> Any:
        step = current.get()
        if step is None or step[1] != 1:
            return original(model)
        return SimpleNamespace(microbatch_group_size_per_vp_stage=None)

    return get_model_config
