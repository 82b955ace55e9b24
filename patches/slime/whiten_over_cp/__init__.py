"""`slime.whiten-over-cp`: advantages are whitened over all ranks that have a part of them.

Under context parallelism a rank has some of the tokens of each sample, and slime asks the data parallel group
for statistics, in which the ranks all have the same part. So the name by which slime whitens is replaced, and
asks the group that includes context parallelism. A rank that has no token at all never gets there: it enters
the collective when slime is done, which has none behind it.
"""

from __future__ import annotations

from overlay.compat.projects import SLIME
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches.slime.whiten_over_cp.fix import make_advantages, make_whiten

_LOSS = "slime.backends.megatron_utils.loss"
_ADVANTAGES = f"{_LOSS}:compute_advantages_and_returns"

PATCH = Patch(
    id="slime.whiten-over-cp",
    revision=2,
    summary="Advantages normalised with one mean and deviation for all ranks",
    why=(
        "With --normalize-advantages and context parallelism, slime's ranks whiten their slices of a sample "
        "each with the statistics of its own slices over the data parallel ranks: tokens of one sample get "
        "different means and deviations. A rank whose slices have no response token leaves the collective "
        "out, and the others wait for it until they time out. With the patch all ranks that have a part of "
        "the batch are asked together, whether or not they have a token. Sums are taken in float64: in "
        "float32 they lose the variance of advantages that are large against it."
    ),
    changes=("numbers", "hangs"),
    met="--normalize-advantages with a context parallel size above 1, or with advantages far from 0.",
    upstream=("THUDM/slime#2235",),
    evidence=(
        "slime's commit dd7f037 (#2235, after 0.3.1) asks the same group on every rank; the result is that "
        "of one process in float64."
    ),
    targets=one_target(
        SLIME,
        variant(
            "0.2",
            # What the import stands for, and so what is replaced in truth.
            "slime.utils.distributed_utils:distributed_masked_whiten",
            replaced(_ADVANTAGES, make_advantages),
            replaced(f"{_LOSS}:distributed_masked_whiten", make_whiten),
        ),
    ),
)
