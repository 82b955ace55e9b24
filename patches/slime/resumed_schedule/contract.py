"""After a resume the learning rate goes on from where the checkpoint had it."""

from __future__ import annotations

import random
from argparse import Namespace
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from overlay.patch import Contract
from overlay.testing import with_patches


def wrong(seed: str) -> str:
    """Return which schedule does not stand where it should, empty if each does.

    The model and the file of the checkpoint are stood in for; the schedule is Megatron's own.
    """
    from overlay.compat.megatron_on_cpu import megatron

    with megatron():
        import torch
        from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

        from overlay.compat.slime_on_cpu import import_slime

        module: Any = import_slime("model")[0]
        draw = random.Random(seed)
        batch, iteration = draw.randint(2, 9), draw.randint(3, 9)
        # More than one step for each rollout, which is what an iteration is in slime.
        samples = batch * iteration * draw.randint(1, 3)

        def fresh() -> Any:
            optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
            styles = {"lr_decay_style": "cosine", "wd_incr_style": "linear"}
            return OptimizerParamScheduler(
                optimizer, 0.0, 1.0, 0.0, 5, 300, start_wd=0.0, end_wd=1.0, wd_incr_steps=300, **styles
            )

        def loaded(kept: int) -> Callable[..., Any]:
            """Return what loads a checkpoint with the schedule after `kept` samples, none if 0."""

            def load(_model: Any, _optimizer: Any, scheduler: Any, **_options: Any) -> Any:
                if kept:
                    scheduler.step(increment=kept)
                return iteration, 0

            return load

        for kept in (samples, 0):
            made = fresh()
            module.setup_model_and_optimizer = lambda *_, made=made: (
                [SimpleNamespace()],
                made.optimizer,
                made,
            )
            module.load_checkpoint = loaded(kept)
            _, _, found, _ = module.initialize_model_and_optimizer(
                Namespace(global_batch_size=batch), "actor"
            )
            # A checkpoint without a schedule is left to slime: it begins anew, or after the rollouts.
            wanted = kept or (found.num_steps if found.num_steps in (0, batch * iteration) else 0)
            right = fresh()
            right.step(increment=wanted)
            rates = [one.optimizer.param_groups[0]["lr"] for one in (found, right)]
            if found.num_steps != wanted or rates[0] != rates[1]:
                return (
                    f"resumed after {wanted} samples, the schedule stands at {found.num_steps}: "
                    f"a learning rate of {rates[0]:.4g} and not {rates[1]:.4g}"
                )
    return ""


CONTRACT = Contract(
    check=with_patches(wrong, "slime.resumed-schedule"), before=("megatron.core", "ray", "tensordict")
)
