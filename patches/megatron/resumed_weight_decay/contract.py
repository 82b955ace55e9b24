"""A resumed schedule has at once, in every group, what the one that was saved had."""

import random
from types import SimpleNamespace
from typing import Any

from overlay.compat.contracts import megatron_parts as parts

#: Schedules that are drawn.
COUNT = 60


@parts.on_one_rank
def wrong(seed: str) -> str:
    """Return what differs after a resume from what was saved, empty if nothing does."""
    draw = random.Random(seed)
    for _ in range(COUNT):
        before, after, ours = _scheduler(draw), _scheduler(draw), _scheduler(draw, own=True)
        before.step(steps := draw.randint(1, 100))
        state = before.state_dict()
        after.load_state_dict(state)
        if after.state_dict() != state:
            return "what was loaded is not what was saved"
        if _seen(after) != _seen(before):
            return f"at step {steps} (lr, weight decay) are {_seen(after)} and not {_seen(before)}"
        # Told to override, the job goes on by its own settings, at the step of the checkpoint.
        style = ours.wd_incr_style
        ours.load_state_dict(state)
        first = _seen(ours)
        ours.step(0)
        grows = style == "constant" and ours.end_wd != ours.start_wd
        if first != _seen(ours) or ours.num_steps != steps or grows:
            return f"at step {steps} a job with its own settings has {first} and then {_seen(ours)}"
    return ""


def _scheduler(draw: random.Random, *, own: bool = False) -> Any:
    """Return a schedule that is drawn, which goes on by its own settings after a resume or by those saved."""
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    constant, start = draw.random() < 0.3, draw.uniform(0, 0.1)
    plain = {"params": [], "lr_mult": 1.0, "is_decoupled_lr": False}
    return OptimizerParamScheduler(
        SimpleNamespace(param_groups=[{**plain, "wd_mult": mult} for mult in (1.0, 0.0, 0.5)]),
        init_lr=0.0, max_lr=draw.uniform(1e-3, 1e-2), min_lr=1e-5,
        lr_warmup_steps=draw.randint(0, 5), lr_decay_steps=draw.randint(20, 90),
        lr_decay_style=draw.choice(("linear", "cosine")),
        start_wd=start, end_wd=start if constant else draw.uniform(0.1, 0.2),
        wd_incr_steps=draw.randint(20, 90),
        wd_incr_style="constant" if constant else draw.choice(("linear", "cosine")),
        use_checkpoint_opt_param_scheduler=not own, override_opt_param_scheduler=own,
    )  # fmt: skip


def _seen(scheduler: Any) -> list[tuple[float, float]]:
    return [(group["lr"], group["weight_decay"]) for group in scheduler.optimizer.param_groups]


CONTRACT = parts.contract("megatron.resumed-weight-decay", wrong)
