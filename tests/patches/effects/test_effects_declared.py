"""Each patch declares what it counts, and some test of this folder counts it by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from effect_cases import COUNTING, PATCHES, counts_of, part

from overlay.effect import Counts, of_module, told
from overlay.source.registry import module_of


@pytest.mark.parametrize("patch", COUNTING)
def test_each_patch_declares_what_it_counts(patch: str) -> None:
    counts = counts_of(patch)
    assert isinstance(counts, Counts)
    assert counts.place == part(patch, "effect")
    # What a sentence names is counted.
    for figure in counts.effect.figures:
        setattr(counts, figure.name, 3)
    declared = of_module(module_of(patch))
    assert declared is not None
    assert "{" not in told(declared)
    assert counts.effect.then.count("{") == 0 or "; " in told(declared)
    counts.clear()


def test_every_patch_counts() -> None:
    assert sorted(COUNTING) == sorted(PATCHES)


@pytest.mark.parametrize("patch", COUNTING)
def test_some_test_counts_by_hand_what_it_counts(patch: str) -> None:
    texts = [path.read_text() for path in Path(__file__).parent.glob("test_effects_o*.py")]
    assert any(f'"{patch}"' in text for text in texts)
