"""Each model is loaded from the step that its own option names, whichever was loaded before it."""

from __future__ import annotations

import random
from argparse import Namespace
from typing import Any
from unittest.mock import MagicMock

from overlay.patch import Contract
from overlay.testing import with_patches


def wrong(seed: str) -> str:
    """Return which model is loaded from another model's step, empty if none is."""
    from overlay.compat.megatron_on_cpu import megatron

    with megatron():
        from overlay.compat.slime_on_cpu import import_slime

        actor: Any = import_slime("actor")[0]
        draw = random.Random(seed)
        read: list[Any] = []
        own: Any = None

        def load_checkpoint(*_args: Any, **_options: Any) -> tuple[int, int]:
            read.append(own.args.ckpt_step)
            return 0, 0

        actor.load_checkpoint = load_checkpoint
        for step in (None, draw.randint(1, 99)):
            for ref in (None, draw.randint(100, 199)):
                for teacher in (None, draw.randint(200, 299)):
                    args = Namespace(load="actor", no_load_optim=False, no_load_rng=False, finetune=False)
                    args.ckpt_step, args.ref_ckpt_step, args.opd_teacher_ckpt_step = step, ref, teacher
                    own = MagicMock(args=args)
                    read.clear()
                    for tag in ("ref", "teacher", "old_actor"):
                        actor.MegatronTrainRayActor.load_other_checkpoint(own, tag, tag)
                    wanted = [ref or step, teacher or step, step]
                    if read != wanted or args.ckpt_step != step:
                        return (
                            f"steps {step} of the actor, {ref} of the reference, {teacher} of the teacher: "
                            f"reference, teacher and old actor come from {read} and not {wanted}"
                        )
    return ""


CONTRACT = Contract(
    check=with_patches(wrong, "slime.checkpoint-step"), before=("megatron.core", "ray", "tensordict")
)
