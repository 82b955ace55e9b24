"""Small things that released Megatrons get wrong: the contract of each patch, without it and with it.

Each release is run once for all patches, in a process of its own with that release first on the path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from contract_tests import SEED, Contracts, holds

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from contract_tests import Found

pytestmark = pytest.mark.real

#: The last of each minor version; the others have the same sources at the sites.
OLD = ("0.12.3", "0.13.1", "0.14.0", "0.15.3", "0.16.1")
NEW = ("0.17.1", "0.18.2", "0.19.2")

#: The releases that a patch is for, and those that are cured.
AFFECTED: dict[str, tuple[str, ...]] = {
    "megatron.async-checkpoint-pin": OLD,
    "megatron.resumed-weight-decay": (*OLD, *NEW),
    "megatron.sigmoid-aux-scores": OLD,
    "megatron.cp-comm-type-by-layer": OLD,
    "megatron.label-smoothing-over-tp": (*OLD, *NEW),
    "megatron.mla-rotary-key-over-tp": (*OLD, *NEW),
    "megatron.reshardable-checkpoint": ("0.15.3", "0.16.1", *NEW),
    "megatron.mtp-without-tokens": OLD,
    "megatron.uniform-recompute": OLD,
    "megatron.gated-norm-over-tp": ("0.16.1", *NEW),
    "megatron.param-groups-by-lr": ("0.16.1", "0.17.1", "0.18.2"),
    "megatron.attention-logit-memory": ("0.16.1", "0.17.1", "0.18.2"),
}
CURED: dict[str, tuple[str, ...]] = {
    "megatron.async-checkpoint-pin": NEW,
    "megatron.sigmoid-aux-scores": NEW,
    "megatron.cp-comm-type-by-layer": NEW,
    "megatron.mtp-without-tokens": NEW,
    "megatron.uniform-recompute": NEW,
    "megatron.param-groups-by-lr": ("0.15.3", "0.19.2"),
    "megatron.attention-logit-memory": ("0.19.2",),
}
#: By day each source runs once; a release has several patches, so the last before the cure and the newest do.
BY_DAY = ("0.13.1", "0.16.1", "0.19.2")


CONTRACTS = Contracts("megatron-core", AFFECTED, CURED, BY_DAY)
alone = CONTRACTS.xfail_where_needed


@pytest.fixture
def found(release: Callable[[str], Path], findings: Callable[..., dict[str, Any]]) -> Found:
    return CONTRACTS.finder(lambda version: release(f"megatron-core=={version}"), findings)


@CONTRACTS.with_the_patch()
def test_with_the_patch_it_is_right(found: Found, patch: str, version: str) -> None:
    assert found(patch, version)[1] == "", SEED


@alone("megatron.async-checkpoint-pin")
def test_upstream_alone_keeps_what_is_being_written(found: Found, version: str) -> None:
    holds(found("megatron.async-checkpoint-pin", version)[0])


@alone("megatron.resumed-weight-decay")
def test_upstream_alone_decays_by_the_checkpoint(found: Found, version: str) -> None:
    holds(found("megatron.resumed-weight-decay", version)[0])


@alone("megatron.sigmoid-aux-scores")
def test_upstream_alone_scores_in_float32(found: Found, version: str) -> None:
    holds(found("megatron.sigmoid-aux-scores", version)[0])


@alone("megatron.cp-comm-type-by-layer")
def test_upstream_alone_gives_each_layer_its_type(found: Found, version: str) -> None:
    holds(found("megatron.cp-comm-type-by-layer", version)[0])


@alone("megatron.reshardable-checkpoint")
def test_upstream_alone_saves_each_parameters_state(found: Found, version: str) -> None:
    holds(found("megatron.reshardable-checkpoint", version)[0])


@pytest.mark.parametrize("version", ["0.16.1"])
def test_three_and_six_data_parallel_ranks_save_each_parameters_state(
    release: Callable[[str], Path], findings: Callable[..., dict[str, Any]], version: str
) -> None:
    """One release: the others have the same source, and one rank pads its buckets too."""
    said = findings(release(f"megatron-core=={version}"), "reshardable_ranks.py", SEED, "3", "6")
    for ranks in (3, 6):
        alone, patched = said[str(ranks)]
        assert len(alone) == ranks
        assert all("of another parameter" in one for one in alone), (SEED, alone)
        assert patched == [""] * ranks, SEED


@alone("megatron.label-smoothing-over-tp")
def test_upstream_alone_smooths_over_the_vocabulary(found: Found, version: str) -> None:
    holds(found("megatron.label-smoothing-over-tp", version)[0])


@alone("megatron.mla-rotary-key-over-tp")
def test_upstream_alone_sums_the_rotary_key(found: Found, version: str) -> None:
    holds(found("megatron.mla-rotary-key-over-tp", version)[0])


@alone("megatron.mtp-without-tokens")
def test_upstream_alone_predicts_without_tokens(found: Found, version: str) -> None:
    holds(found("megatron.mtp-without-tokens", version)[0])


@alone("megatron.uniform-recompute")
def test_upstream_alone_ends_at_the_last_layer(found: Found, version: str) -> None:
    holds(found("megatron.uniform-recompute", version)[0])


@alone("megatron.gated-norm-over-tp")
def test_upstream_alone_sums_the_gated_norm(found: Found, version: str) -> None:
    holds(found("megatron.gated-norm-over-tp", version)[0])


@alone("megatron.param-groups-by-lr")
def test_upstream_alone_resumes_each_groups_rate(found: Found, version: str) -> None:
    holds(found("megatron.param-groups-by-lr", version)[0])


@alone("megatron.attention-logit-memory")
def test_upstream_alone_keeps_no_graph_of_logits(found: Found, version: str) -> None:
    holds(found("megatron.attention-logit-memory", version)[0])


@pytest.mark.parametrize("version", ["0.16.1", "0.19.2"])
def test_the_manager_for_deepep_keeps_one_micro_batch_and_no_more(
    release: Callable[[str], Path], findings: Callable[..., dict[str, Any]], version: str
) -> None:
    """What docs/known-issues.md says of it: no leak that grows, so that there is no patch."""
    said = findings(release(f"megatron-core=={version}"), "deepep_check.py")
    assert said == {"plain": [1, 1, 1, 1], "recomputed": [1, 1, 1, 1]}
