"""After a resume the learning rate goes on from where the checkpoint had it."""

import random
from argparse import Namespace
from types import SimpleNamespace
from typing import Any

from overlay.compat.contracts.slime import contract, on_megatron


@on_megatron("model")
def wrong(seed: str, module: Any) -> str:
    """Return which schedule, Megatron's own, does not stand where it should."""
    import torch
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    draw = random.Random(seed)
    batch, iteration = draw.randint(2, 9), draw.randint(3, 9)

    def schedule(samples: int) -> Any:
        optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
        styles = {"lr_decay_style": "cosine", "wd_incr_style": "linear"}
        made = OptimizerParamScheduler(
            optimizer, 0.0, 1.0, 0.0, 5, 300, start_wd=0.0, end_wd=1.0, wd_incr_steps=300, **styles
        )
        made.step(increment=samples)
        return made

    # More than one step for each rollout, which is what an iteration is in slime; or no schedule at all.
    for kept in (batch * iteration * draw.randint(1, 3), 0):
        made = schedule(0)

        def load(*given: Any, kept: int = kept, **_options: Any) -> Any:
            if kept:
                given[2].step(increment=kept)
            return iteration, 0

        parts = [SimpleNamespace()], made.optimizer, made
        module.setup_model_and_optimizer = lambda *_, parts=parts: parts
        module.load_checkpoint = load
        found = module.initialize_model_and_optimizer(Namespace(global_batch_size=batch), "actor")[2]
        # A checkpoint without a schedule is left to slime: it begins anew, or after the rollouts.
        wanted = kept or (found.num_steps if found.num_steps in (0, batch * iteration) else 0)
        rates = [one.optimizer.param_groups[0]["lr"] for one in (found, schedule(wanted))]
        if found.num_steps != wanted or rates[0] != rates[1]:
            return (
                f"resumed after {wanted} samples, the schedule stands at {found.num_steps}: "
                f"a learning rate of {rates[0]:.4g} and not {rates[1]:.4g}"
            )
    return ""


CONTRACT = contract(wrong, "slime.resumed-schedule")
