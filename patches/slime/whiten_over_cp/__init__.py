"""`slime.whiten-over-cp`: advantages are whitened over all ranks that have a part of them.

Under context parallelism a rank has some of the tokens of each sample, and slime asks the data parallel group
for statistics, in which the ranks all have the same part. So the name by which slime whitens is replaced, and
asks the group that includes context parallelism. A rank that has no token at all never gets there: it enters
the collective when slime is done, which has none behind it.
"""

from __future__ import annotations

from overlay.compat.projects import SLIME
from overlay.patch import Patch, Removal, Variant, fixed, known, one_target, replaced, variant
from overlay.patches.slime.whiten_over_cp.fix import make_advantages, make_whiten

_LOSS = "slime.backends.megatron_utils.loss"
_ADVANTAGES = f"{_LOSS}:compute_advantages_and_returns"


def _variant(name: str, versions: str, *digests: str) -> Variant:
    """Return a variant by the digests of the function that computes advantages."""
    return variant(
        name,
        versions,
        # What the import stands for, and so what is replaced in truth.
        known("slime.utils.distributed_utils:distributed_masked_whiten", "36e2ecb14c57", "a40c04ac0ab3"),
        replaced(_ADVANTAGES, make_advantages, *digests),
        replaced(f"{_LOSS}:distributed_masked_whiten", make_whiten, "a25370b8c9ce"),
    )


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
    remove=Removal(
        when="a release asks the data parallel group with context parallelism, on every rank",
        test="tests/real/test_whiten_over_cp.py::test_upstream_alone_whitens_over_all_ranks",
    ),
    targets=one_target(
        SLIME,
        # The tag v0.2.4 calls itself 0.2.3.
        _variant(
            "0.2",
            ">=0.1.0.dev0,<0.2.5.dev0",
            # Commits before 0.2.0, which call themselves 0.1.0.
            *("8e229acbcf45", "70da7816f596", "c58722704e67", "faab8ac77d01", "206b3d5691e1"),
            *("c2d1574cbf6c", "f60b943e18b9", "887c34fa3d6e", "800f02bac1e1"),
            *("a66e425738e0", "3548c5dd5ade", "45ee1816ba0e", "ee46cc8cc4e3"),
        ),
        _variant(
            "0.3", ">=0.2.4.dev0,<0.3.2.dev0", "d0698ec5dd8d", "35d9bb8ea6f7", "82444f15e8cd", "2f3b104525de"
        ),
        # Commits after the tag v0.3.1, which call themselves 0.3.1 as well.
        fixed(
            "after 0.3.1",
            ">=0.3.1.dev0",
            known(_ADVANTAGES, "54f5c8035b65", "2cb81e45e500"),
            reason="slime asks all ranks that have a part of the batch",
        ),
    ),
)
