"""slime.hf-attention-gradient on four gloo ranks: slime's own layer, in every release that has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from checks import SEED
from slime_ranks import folder, on_ranks

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["folder"]

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.real,
    pytest.mark.by_variant("slime.hf-attention-gradient", revision="slime"),
]

RELEASES = (
    "v0.2.0", "v0.2.0.post1", "v0.2.1", "v0.2.2", "v0.2.3", "v0.2.4", "286750aa3", "v0.3.0", "v0.3.1",
    "624b824a8",
)  # fmt: skip
#: Those that have Qwen3-Next's layer alone, and not Qwen3.5's.
ONE_MODEL = ("v0.2.0", "v0.2.0.post1", "v0.2.1", "v0.2.2")
#: Of the synthetic layer in float64; of the models', parts of which compute in float32 at any type.
TOLERANCES = {"mixing": 1e-10, "qwen3_next": 1e-4, "qwen3_5": 1e-4, "bfloat16": 0.0}


def wrong(found: dict[str, list[Any]]) -> list[str]:
    """Return the cases in which some rank's gradient is not that of one process; the output always is."""
    off = []
    for name, ranks in found.items():
        # No `AssertionError`: a layer that cannot be run is no gradient that is wrong.
        if not all(rank is not None and "message" not in rank for rank in ranks):
            raise RuntimeError(f"seed {SEED}: {name}: {ranks}")
        tolerance = TOLERANCES[name.split(",")[0]]
        if not max(rank["output"] for rank in ranks) <= tolerance:
            raise RuntimeError(f"seed {SEED}: {name}: another output: {ranks}")
        if not max(rank["gradient"] for rank in ranks) <= tolerance:
            off.append(name)
    return off


@pytest.mark.nightly(
    "v0.3.1 stands for it, and the contract", revision=tuple(one for one in RELEASES if one != "v0.3.1")
)
@pytest.mark.parametrize("revision", RELEASES)
def test_gradients_are_those_of_one_process(folder: Path, revision: str) -> None:
    found = on_ranks(folder, "hf_attention_cases", "hf-attention-gradient")
    assert len(found) == (13 if revision in ONE_MODEL else 19)
    assert not wrong(found), (SEED, found)


@pytest.mark.nightly("the contract shows what upstream does alone")
@pytest.mark.parametrize(
    ("revision", "count", "words"), [("v0.2.3", 9, ("sequence parallel",)), ("v0.3.1", 13, ("cp2", "cp4"))]
)
def test_upstream_alone_is_wrong_where_the_patch_says(
    folder: Path, count: int, words: tuple[str, ...]
) -> None:
    off = wrong(on_ranks(folder, "hf_attention_cases"))
    assert off == [name for name in off if any(word in name for word in words)]
    assert len(off) == count
