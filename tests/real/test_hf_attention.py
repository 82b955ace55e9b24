"""slime.hf-attention-gradient on four gloo ranks: slime's own layer, in every release that has it."""

from __future__ import annotations

import functools
import os
import secrets
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from checks import UPSTREAMS
from overlay.compat.ranks.launcher import run_cases

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.real,
    pytest.mark.by_source("slime.hf-attention-gradient", revision="slime"),
]

SEED = os.environ.setdefault("OVERLAY_TEST_SEED", str(secrets.randbelow(2**31)))
RELEASES = (
    "v0.2.0", "v0.2.0.post1", "v0.2.1", "v0.2.2", "v0.2.3", "v0.2.4", "286750aa3", "v0.3.0", "v0.3.1",
    "624b824a8",
)  # fmt: skip
#: Those that have Qwen3-Next's layer alone, and not Qwen3.5's.
ONE_MODEL = ("v0.2.0", "v0.2.0.post1", "v0.2.1", "v0.2.2")
#: Of the synthetic layer in float64; of the models', parts of which compute in float32 at any type.
TOLERANCES = {"mixing": 1e-10, "qwen3_next": 1e-4, "qwen3_5": 1e-4, "bfloat16": 0.0}


def on_ranks(folder: Path, **options: Any) -> dict[str, list[Any]]:
    """Return what the ranks found, by case, after a look at whether each came back."""
    with tempfile.TemporaryDirectory() as scratch:
        program = str(UPSTREAMS / "slime_loss_main.py")
        found = run_cases(
            4, "hf_attention_cases", Path(scratch), timeout=200, program=program, release=folder, **options
        )
    for name, ranks in found.items():
        # No `AssertionError`: a layer that cannot be run is no gradient that is wrong.
        if not all(rank is not None and "message" not in rank for rank in ranks):
            raise RuntimeError(f"seed {SEED}: {name}: {ranks}")
    return found


def wrong(found: dict[str, list[Any]]) -> list[str]:
    """Return the cases in which some rank's gradient is not that of one process; the output always is."""
    for name, ranks in found.items():
        if not max(rank["output"] for rank in ranks) <= TOLERANCES[name.split(",")[0]]:
            raise RuntimeError(f"seed {SEED}: {name}: another output: {ranks}")
    return [
        name
        for name, ranks in found.items()
        if not max(rank["gradient"] for rank in ranks) <= TOLERANCES[name.split(",")[0]]
    ]


@pytest.mark.parametrize("revision", RELEASES)
def test_gradients_are_those_of_one_process(revision: str, slime: Callable[[str], Path]) -> None:
    found = on_ranks(slime(revision), patches="slime.hf-attention-gradient")
    assert len(found) == (13 if revision in ONE_MODEL else 19)
    assert not wrong(found), (SEED, found)


@functools.cache
def plain(folder: Path) -> list[str]:
    """Return the cases in which upstream alone is wrong."""
    return wrong(on_ranks(folder, overlay=False))


still_wrong = pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="once this passes, slime.hf-attention-gradient has had its day",
)


def test_upstream_alone_is_wrong_where_the_patch_says(slime: Callable[[str], Path]) -> None:
    old, new = (plain(slime(revision)) for revision in ("v0.2.3", "v0.3.1"))
    assert old == [name for name in old if "sequence parallel" in name]
    assert len(old) == 9
    assert new == [name for name in new if "cp1" not in name]
    assert len(new) == 13
