"""What slime logs reaches wandb as it is, and the figures of the patches with it."""

import random
from importlib.util import find_spec
from types import SimpleNamespace

from overlay.patch import Contract
from overlay.testing import with_patches


def wrong(seed: str) -> str:
    """Return what is wrong in what wandb is given."""
    from overlay.compat.slime_on_cpu import imported, stand_in

    stand_in()
    old = [name for name in ("tracking_utils", "logging_utils") if find_spec(f"slime.utils.{name}")]
    new = find_spec("slime.observability")
    module = imported("slime.observability.logging_utils" if new else f"slime.utils.{old[0]}")
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


CONTRACT = Contract(check=with_patches(wrong, "slime.metrics"), before=("wandb",))
