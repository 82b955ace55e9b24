"""Each backend gets what verl logs, unchanged, and the figures of the patches with it."""

import random
from types import SimpleNamespace

from overlay.patch import Contract
from overlay.testing import with_patches


def wrong(seed: str) -> str:
    """Return what is wrong with what a backend is given, empty if nothing is."""
    from verl.utils.tracking import Tracking

    draw = random.Random(seed)
    told: list[tuple[dict[str, float], int]] = []
    tracking = Tracking.__new__(Tracking)
    tracking.logger = {"own": SimpleNamespace(log=lambda data, step: told.append((data, step)))}
    for number in range(draw.randint(2, 5)):
        given, step = {"actor/loss": draw.random()}, draw.randint(1, 100)
        before = dict(given)
        tracking.log(data=given, step=step)
        found, at = told[-1]
        if given != before or not before.items() <= found.items() or at != step:
            return f"{before} of step {step} was logged as {found} of step {at}"
        if found.get("overlay/verl.metrics/changed") != 2 * number + 1:  # each turn logs twice
            return f"no figure of the patches is in {sorted(found)}"
        tracking.log(data=given, step=step, backend=["another"])
        if len(told) != number + 1:
            return "a backend that was not named is told"
    return ""


CONTRACT = Contract(check=with_patches(wrong, "verl.metrics"), before=("verl.protocol",))
