"""What is held of a run of verl's SFT trainer: how even its steps are, and that they lose nothing."""

import math
from collections.abc import Callable
from itertools import zip_longest
from typing import Any

#: What the patch takes for even: a thousandth above the mean.
EVEN = 1.001
#: The runs that are made with overlay and without.
RUNS = ("default", "shared", "one", "images", "padded")

Steps = list[dict[str, Any]]


def work(length: int) -> int:
    """Return the work of a sample by verl's estimate, written anew."""
    return 24576 * length + length**2


def imbalance(step: dict[str, Any], measure: Callable[[int], int] = work) -> float:
    """Return the most that a rank got over the mean."""
    loads = [sum(map(measure, share["lengths"])) for share in step["shares"]]
    return max(loads) * len(loads) / sum(loads)


def samples(step: dict[str, Any]) -> list[Any]:
    """Return what was trained on, in an order of its own."""
    return sorted(uid for share in step["shares"] for uid in share["uids"])


def more_even(ours: Steps, upstream: Steps) -> bool:
    """Return whether no step is less even, and some step is more so."""
    pairs = [(imbalance(one), imbalance(other)) for one, other in zip(ours, upstream, strict=True)]
    return all(one <= max(EVEN, other) for one, other in pairs) and any(one < other for one, other in pairs)


def broken(ours: Steps, upstream: Steps) -> list[str]:
    """Return what is wrong with the steps of one run."""
    if len(ours) != len(upstream):
        return ["another number of steps"]
    found = []
    for one, other in zip(ours, upstream, strict=True):
        size = max(map(abs, other["gradient"]))
        # What one has and the other has not counts as a value that is far off.
        gradients = zip_longest(one["gradient"], other["gradient"], fillvalue=math.inf)
        right = {
            "other samples than without the patch": samples(one) == samples(other),
            "ranks have different numbers of samples": len({len(s["uids"]) for s in one["shares"]}) == 1,
            "fields are not with their sample": all(share["intact"] for share in one["shares"]),
            # On floats Karmarkar-Karp breaks ties otherwise, and may come a millionth nearer to the mean.
            "less even than without the patch": imbalance(one) <= max(EVEN, imbalance(other)),
            "another gradient": max(abs(mine - theirs) for mine, theirs in gradients) <= 1e-6 * size,
            "another loss": math.isclose(one["train/loss"], other["train/loss"], rel_tol=1e-6),
        }
        found += [said for said, holds in right.items() if not holds]
    return found
