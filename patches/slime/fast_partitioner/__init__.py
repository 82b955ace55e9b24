"""`slime.fast-partitioner`: the same partitions as slime's Karmarkar-Karp, in a fraction of the time."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from overlay.compat.projects import SLIME
from overlay.effect import effect
from overlay.patch import Patch, one_target, replaced, variant

_SITE = "slime.utils.seqlen_balancing:karmarkar_karp"
EFFECT = effect(__name__, "partition", did="computed", always=True)


def make_karmarkar_karp(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build `karmarkar_karp`: the same partitions, in a fraction of the time."""
    from overlay.patches._fast_partitioner import fast_or

    return fast_or(original, EFFECT)


PATCH = Patch(
    id="slime.fast-partitioner",
    summary="The same balanced partitions in a fraction of the time",
    why=(
        "slime balances samples over micro-batches and ranks with a Karmarkar-Karp that sorts, for every "
        "sample, as many sets as there are parts: with 8,192 samples in 1,451 parts it takes half a minute "
        "of every step, while the device waits. With the patch only the sets that are not empty are kept, "
        "and the partitions are the same, to the last tie."
    ),
    changes=("speed",),
    met="Every job whose samples are balanced: the larger the batch, the more time is saved.",
    upstream=("THUDM/slime@bd217a63f",),
    evidence=(
        "The partitions are those of slime's own function on the same input, to the last tie: the contract "
        "compares the two."
    ),
    targets=one_target(
        SLIME,
        variant(
            "0.1-0.3",
            replaced(_SITE, make_karmarkar_karp),
        ),
    ),
)
