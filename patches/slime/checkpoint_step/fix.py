"""What keeps the step of one model's checkpoint out of the next model's."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any


def make_load_other(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap the loading of another model than the actor, whose arguments it borrows."""
    from overlay.patches.slime.checkpoint_step.effect import EFFECT

    def load_other_checkpoint(self: Any, model_tag: str, path: str) -> None:
        step = self.args.ckpt_step
        try:
            original(self, model_tag, path)
        finally:
            EFFECT.calls += 1
            EFFECT.changed += self.args.ckpt_step != step
            self.args.ckpt_step = step

    return load_other_checkpoint
