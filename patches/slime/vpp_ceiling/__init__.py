"""`slime.vpp-ceiling`: the number of micro-batches is rounded up for virtual pipeline stages, not down.

slime rounds the greatest of the ranks' numbers. Here each rank rounds its own first: the greatest of
multiples is one. Where there are fewer samples than a group, all ranks ask for more micro-batches than that,
and raise the same error (in `slime.capped-partitions`).
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from overlay.compat.projects import SLIME
from overlay.effect import Figure, effect
from overlay.patch import Patch, around, one_target, replaced, variant
from overlay.patches._partition import capped_partitions
from overlay.patches._slime_step import DATA, current

_COUNT = f"{DATA}:get_minimum_num_micro_batch_size"
_COUNTED = "slime.utils.data:get_minimum_num_micro_batch_size"
#: When the greatest number is taken, and which way it is rounded, decides what the count has to be.
_ITERATOR = f"{DATA}:get_data_iterator"
EFFECT = effect(
    __name__,
    "step",
    Figure(name="more", says="micro-batches more than slime would have taken"),
    did="rounded up",
    then="{more} micro-batches more",
)


def rounded(lengths: Sequence[int], count: int) -> int:
    """Return `count`, which first fit needs for `lengths`, as a multiple of the group size.

    It is rounded down as slime has it if that many hold the budget, else up. If that is more than there are
    samples, it is rounded down, or where that is 0 a number that all ranks refuse.
    """
    if (step := current.get()) is None:
        return count
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
    try:
        capped_partitions(lengths, parts, budget)
    except ValueError:
        return False
    return True


@around
def count(original: Any, total_lengths: Sequence[int], *given: Any, **named: Any) -> int:
    """Round what first fit needs, in slime 0.1 and 0.2."""
    return rounded(total_lengths, original(total_lengths, *given, **named))


@around
def count_286(original: Any, total_lengths: Sequence[int], *given: Any, **named: Any) -> int:
    """Round the same of commit 286750aa3, which rounds up by itself, but past the samples there are."""
    return rounded_up(total_lengths, original(total_lengths, *given, **named))


@around
def config(original: Any, model: Any) -> Any:
    """Return the configuration that slime 0.1 reads, without the group size where no stage is virtual."""
    step = current.get()
    if step is None or step[1] != 1:
        return original(model)
    return SimpleNamespace(microbatch_group_size_per_vp_stage=None)


PATCH = Patch(
    id="slime.vpp-ceiling",
    summary="Round the number of micro-batches up, not down, for virtual pipeline stages",
    why="With virtual pipeline stages the number of micro-batches must be a multiple of a group size, and "
    "slime rounds it down: in groups of 4, a step that needs 7 micro-batches gets 4, which hold almost twice "
    "as many tokens as their budget, and one that needs 3 gets 1, which Megatron refuses. With the patch "
    "each rank rounds up before the ranks agree. A step with too few samples for that keeps slime's number, "
    "with a warning; with fewer than a group, all ranks raise one error that says what to change.",
    changes=("memory", "crashes"),
    met="--use-dynamic-batch-size with virtual pipeline stages.",
    upstream=("THUDM/slime#1823", "THUDM/slime#1848", "THUDM/slime#1951"),
    evidence="Megatron refuses any other number. slime's commit 286750a and 0.3.0 round up too.",
    requires=("slime.capped-partitions",),
    targets=one_target(
        SLIME,
        variant(
            "0.1",
            _ITERATOR,
            replaced(_COUNT, count),
            "slime.backends.utils.data:get_minimum_num_micro_batch_size",
            replaced(f"{DATA}:get_model_config", config),
        ),
        # What is imported from there is what is replaced.
        variant("0.2", _ITERATOR, replaced(_COUNT, count), _COUNTED),
        variant("286750aa3", _ITERATOR, replaced(_COUNT, count_286), _COUNTED),
        tells=("slime.utils.dp_schedule:build_dp_schedule",),
    ),
)
