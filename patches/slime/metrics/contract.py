"""What slime logs reaches wandb as it is, and the figures of the patches with it."""

import random
from types import SimpleNamespace
from typing import Any

from overlay.patch import Contract
from overlay.testing import with_patches


def wrong(seed: str) -> str:
    """Return what is wrong in what wandb is given."""
    places = ("observability.logging_utils", "utils.tracking_utils", "utils.logging_utils")
    module = next(filter(None, map(_found, places)))
    logged: list[dict[str, float]] = []
    module.wandb = SimpleNamespace(log=logged.append)
    args = SimpleNamespace(use_wandb=True, use_tensorboard=False)
    draw = random.Random(seed)
    for number in range(1, draw.randint(2, 5)):
        before = {"train/loss": draw.random(), "train/step": number}
        given = dict(before)
        module.log(args, given, step_key="train/step")
        found = logged[-1]
        if given != before or {name: found.get(name) for name in before} != before:
            return f"{before} was logged as {found}"
        if found.get("overlay/slime.metrics/changed") != number:
            return f"nothing of the patches is in {sorted(found)}"
    return ""


def _found(place: str) -> Any:
    """Return a module of slime, `None` if this release has it elsewhere."""
    from overlay.compat.slime_on_cpu import imported

    name = f"slime.{place}"
    try:
        return imported(name)
    except ModuleNotFoundError as error:
        if not name.startswith(str(error.name)):
            raise
        return None


CONTRACT = Contract(check=with_patches(wrong, "slime.metrics"), before=("wandb",))
