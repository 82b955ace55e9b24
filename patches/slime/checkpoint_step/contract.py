"""Each model is loaded from the step that its own option names, whichever was loaded before it."""

import itertools
import random
from argparse import Namespace
from typing import Any
from unittest.mock import MagicMock

from overlay.compat.contracts.slime import contract, on_megatron


@on_megatron("actor")
def wrong(seed: str, actor: Any) -> str:
    """Return which model is loaded from another model's step."""
    draw = random.Random(seed)
    read: list[Any] = []
    own = MagicMock()

    def load_checkpoint(*_args: Any, **_options: Any) -> tuple[int, int]:
        read.append(own.args.ckpt_step)
        return 0, 0

    actor.load_checkpoint = load_checkpoint
    steps = ((None, draw.randint(first, first + 99)) for first in (1, 100, 200))
    for step, ref, teacher in itertools.product(*steps):
        own.args = Namespace(load="actor", no_load_optim=False, no_load_rng=False, finetune=False)
        own.args.ckpt_step, own.args.ref_ckpt_step, own.args.opd_teacher_ckpt_step = step, ref, teacher
        read.clear()
        for tag in ("ref", "teacher", "old_actor"):
            actor.MegatronTrainRayActor.load_other_checkpoint(own, tag, tag)
        wanted = [ref or step, teacher or step, step]
        if read != wanted or own.args.ckpt_step != step:
            return f"steps of actor, reference and teacher {step, ref, teacher}: loaded {read}, not {wanted}"
    return ""


CONTRACT = contract(wrong, "slime.checkpoint-step")
