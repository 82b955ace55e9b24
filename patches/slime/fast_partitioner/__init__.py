"""`slime.fast-partitioner`: the same partitions as slime's Karmarkar-Karp, in a fraction of the time."""

from typing import Any

from overlay.compat.projects import SLIME
from overlay.effect import effect
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches._fast_partitioner import fast_or

_SITE = "slime.utils.seqlen_balancing:karmarkar_karp"
EFFECT = effect(__name__, "partition", did="computed", always=True)


def make_karmarkar_karp(original: Any, _module: Any) -> Any:
    """Build `karmarkar_karp`: the same partitions, in a fraction of the time."""
    return fast_or(original, EFFECT)


PATCH = Patch(
    id="slime.fast-partitioner",
    summary="The same balanced partitions in a fraction of the time",
    why="slime balances samples by a Karmarkar-Karp that sorts, for every sample, as many sets as there are "
    "parts: 8,192 samples in 1,451 parts take half a minute of every step. With the patch it keeps only the "
    "sets that are not empty, and the partitions are the same, to the last tie.",
    changes=("speed",),
    met="Every job whose samples are balanced: the larger the batch, the more time is saved.",
    upstream=("THUDM/slime@bd217a63f",),
    evidence="The contract compares the partitions with those of slime's own function on the same input.",
    targets=one_target(SLIME, variant("0.1-0.3", replaced(_SITE, make_karmarkar_karp))),
)
