"""What other micro-batches mean for a loss that is a mean over each of them."""

from __future__ import annotations

import random

from checks import SEED

from overlay.patches._partition import karmarkar_karp
from overlay.patches.verl.strict_token_budget import PATCH, settle

#: Tokens of each sample, and of a micro-batch: verl's four micro-batches have one of 10 tokens.
LENGTHS, CAP = [8, 7, 1, 1, 7, 2, 3, 7], 9


def legacy_weights(partitions: list[list[int]]) -> list[float]:
    """Return what a token of each sample weighs in verl's legacy workers, under token-mean.

    A micro-batch counts by its samples, and within it by its tokens (`DataParallelPPOActor.update_policy`).
    """
    weights = [0.0] * len(LENGTHS)
    for part in partitions:
        for index in part:
            weights[index] = len(part) / len(LENGTHS) / sum(LENGTHS[other] for other in part)
    return weights


def test_a_mean_over_each_micro_batch_changes_and_the_patch_says_so() -> None:
    theirs = karmarkar_karp(LENGTHS, -(-sum(LENGTHS) // CAP), equal_size=False)
    ours = settle(len(LENGTHS), max(LENGTHS), LENGTHS, LENGTHS, cap=CAP, agree=int)
    assert max(sum(LENGTHS[index] for index in part) for part in theirs) > CAP
    assert max(sum(LENGTHS[index] for index in part) for part in ours) <= CAP
    before, after = legacy_weights(theirs), legacy_weights(ours)
    draw = random.Random(SEED)
    tokens = [draw.gauss(0, 1) for _ in LENGTHS]
    losses = [sum(w * n * t for w, n, t in zip(by, LENGTHS, tokens, strict=True)) for by in (before, after)]
    assert max(abs(one - other) / one for one, other in zip(before, after, strict=True)) > 0.1
    assert losses[0] != losses[1]
    assert "numbers" in PATCH.changes
    assert "legacy workers" in PATCH.met
