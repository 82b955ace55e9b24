"""The same partitions as the upstreams' Karmarkar-Karp, in a fraction of the time."""

from __future__ import annotations

from overlay.patch import Patch, one_target, replaced, variant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from overlay.patch import Factory, Project


def making(effect: Any, plain: Callable[[Any], Any] = lambda values: values) -> Any:
    """Return what builds `karmarkar_karp`. What `plain` makes no plain numbers of is left to the original."""

    def make(original: Any, _module: Any) -> Callable[..., Any]:
        from overlay.patches._partition import is_exact
        from overlay.patches._partition import karmarkar_karp as fast

        def karmarkar_karp(
            seqlen_list: Sequence[Any], k_partitions: int, equal_size: bool
        ) -> list[list[int]]:
            values = plain(seqlen_list)
            if len(values) == 0 or k_partitions < 1 or not is_exact(values):
                return original(seqlen_list, k_partitions, equal_size)  # type: ignore[no-any-return]
            effect.changed += 1
            return fast(values, k_partitions, equal_size=equal_size)

        return karmarkar_karp

    return make


def patch_of(project: Project, releases: str, make: Factory, *upstream: str) -> Patch:
    """Return the patch of a project, `releases` being the name of its variant."""
    name = project.name
    return Patch(
        id=f"{name}.fast-partitioner",
        summary="The same balanced partitions in a fraction of the time",
        why=f"{name} balances samples by a Karmarkar-Karp that sorts, for every sample, as many sets as "
        "there are parts: 8,192 samples in 1,451 parts take some 20 seconds of every step. With the patch it "
        "keeps only the sets that are not empty, and the partitions are the same, to the last tie.",
        changes=("speed",),
        met="Every job whose samples are balanced: the larger the batch, the more time is saved.",
        upstream=upstream,
        evidence="The contract compares the partitions with those of the original function.",
        targets=one_target(
            project, variant(releases, replaced(f"{name}.utils.seqlen_balancing:karmarkar_karp", make))
        ),
    )
