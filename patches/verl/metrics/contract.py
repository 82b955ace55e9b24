"""The contract of `verl.metrics`: what verl logs reaches each backend as it is, and the figures with it."""

from __future__ import annotations

import random

from overlay.patch import Contract
from overlay.testing import with_patches


def wrong(seed: str) -> str:
    """Return what is wrong in what a backend is given, empty if nothing is."""
    from verl.utils.tracking import Tracking

    draw = random.Random(seed)
    told: list[tuple[dict[str, float], int]] = []

    class Backend:
        def log(self, data: dict[str, float], step: int) -> None:
            told.append((data, step))

    tracking = Tracking.__new__(Tracking)
    tracking.logger = {"own": Backend()}
    for number in range(draw.randint(2, 5)):
        given, step = {"actor/loss": draw.random()}, draw.randint(1, 100)
        before = dict(given)
        tracking.log(data=given, step=step)
        found, at = told[-1]
        if given != before or {name: found.get(name) for name in before} != before or at != step:
            return f"{before} of step {step} was logged as {found} of step {at}"
        # Each turn logs twice.
        if found.get("overlay/verl.metrics/changed") != 2 * number + 1:
            return f"nothing of the patches is in {sorted(found)}"
        tracking.log(data=given, step=step, backend=["another"])
        if len(told) != number + 1:
            return "a backend that was not named is told"
    return ""


CONTRACT = Contract(check=with_patches(wrong, "verl.metrics"), before=("verl.protocol",))
