"""A resumed optimizer has in each parameter group what the one that was saved had, and Adam's moments."""

import copy
import functools
import itertools
import random
from typing import Any

from overlay.compat.contracts import megatron_parts as parts


@parts.on_one_rank
def wrong(seed: str, *, other_rates: bool = False) -> str:
    """Return what differs after a resume from what was saved, empty if nothing does.

    If asked to, of a job too that is resumed with other rates on its command line: 0.19 alone refuses that.
    """
    draw = random.Random(seed)
    # By the rates of embedding and output layer, which Megatron has an option for.
    rates: dict[str, Any] = {
        "decoupled_lr": draw.uniform(2e-3, 9e-3),
        "decoupled_min_lr": draw.uniform(1e-5, 9e-5),
    }
    for distributed, experts, decoupled, half in itertools.product(
        (False, True), (False, True), ({}, rates), ("", "bf16", "fp16")
    ):
        settings: dict[str, Any] = {"distributed": distributed, "experts": experts, "half": half}
        # A job may ask for other rates: those of the checkpoint are loaded all the same.
        other = {name: 1.5 * rate for name, rate in decoupled.items()}
        before, after = (_optimizer(**settings, **decoupled) for _ in range(2))
        changed = _optimizer(**settings, lr=2e-3, **other)
        for one in (before, after, changed):
            _step(one)
        kind = "distributed" if distributed else "plain"
        for one in (after, changed) if other_rates else (after,):
            try:
                one.load_state_dict(copy.deepcopy(before.state_dict()))
            except ValueError as error:
                return f"the {kind} optimizer does not load: {error}"
            if found := _compared(before, one, moments=not distributed):
                return f"of the {kind} optimizer {half} {found}"
    return _among_three(draw) if other_rates else ""


def _among_three(draw: random.Random) -> str:
    """Return which of three groups gets another's rate where the rates of some have changed."""
    from megatron.core.optimizer.optimizer import MegatronOptimizer

    low, middle, high = (draw.uniform(1.1, 1.9) * scale for scale in (1e-5, 1e-4, 1e-3))
    rest = draw.uniform(1e-6, 9e-6)
    one = {"rest": rest, "tower": low, "head": middle}
    # One group passes another, up or down; all are scaled, so that one gets another's old rate; none changes.
    tens = {name: 10 * rate for name, rate in one.items()}
    evenly = {"rest": 1e-4, "tower": 1e-3, "head": 1e-2}
    for saved, asked in (
        (one, {**one, "tower": high}),
        (one, {**one, "head": low / 5}),
        (one, tens),
        (evenly, {"rest": 1e-3, "tower": 1e-2, "head": 1e-1}),
        (evenly, {"rest": 1e-3, "tower": 2e-3, "head": 5e-2}),
        (one, one),
    ):
        there, here = _groups(saved), _groups(asked)
        loaded = MegatronOptimizer._filter_and_reorder_param_groups(here, there)
        got = {group["name"]: own["max_lr"] for group, own in zip(here, loaded, strict=True)}
        if got != saved:
            return f"from {saved}, resumed with {asked}, groups go on with {got}"
    return ""


def _groups(rates: dict[str, float]) -> list[dict[str, Any]]:
    """Return parameter groups as Megatron orders them: by rate, after the one without a rate of its own."""
    return [
        {
            "name": name, "params": [], "default_config": name == "rest", "max_lr": rate, "min_lr": 0.0,
            "wd_mult": 1.0, "lr_mult": 1.0, "is_expert_parallel": False, "is_decoupled_lr": False,
        }
        for name, rate in sorted(rates.items(), key=lambda one: (one[0] != "rest", one[1]))
    ]  # fmt: skip


def _compared(before: Any, after: Any, *, moments: bool) -> str:
    """Return what differs between two optimizers; the distributed one has its moments from elsewhere."""
    import torch

    groups = list(zip(before.param_groups, after.param_groups, strict=True))
    for number, (group, other) in enumerate(groups):
        if [one.shape for one in group["params"]] != [one.shape for one in other["params"]]:
            return f"group {number} has other parameters"
        for key in ("max_lr", "min_lr", "wd_mult", "lr", "weight_decay"):
            if group.get(key) != other.get(key):
                return f"group {number} has {key} {other.get(key)} and not {group.get(key)}"
    if moments:
        old, new = (
            {key: value for part in one.chained_optimizers for key, value in part.optimizer.state.items()}
            for one in (before, after)
        )
        for group, other in groups:
            for one, two in zip(group["params"], other["params"], strict=True):
                if two not in new or not torch.equal(old[one]["exp_avg"], new[two]["exp_avg"]):
                    return "a parameter has lost its moments"
    return ""


def _optimizer(*, distributed: bool, experts: bool, half: str = "", lr: float = 1e-3, **rates: float) -> Any:
    """Build an optimizer of a model of three layers, of which the first is an embedding.

    `half`: `bf16` or `fp16`, for weights of that type with master weights, empty for float32.
    """
    import torch
    from megatron.core.optimizer import OptimizerConfig, optimizer_config

    model: Any = torch.nn.Sequential(torch.nn.Embedding(5, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 5))
    for layer in (model[0], model[2]):
        layer.weight.is_embedding_or_output_parameter = True
    # As if it were of an expert: those have an optimizer of their own.
    if experts:
        model[1].weight.allreduce = False
    if half:
        model.to(torch.bfloat16 if half == "bf16" else torch.float16)
    dtype: dict[str, Any] = {half: True} if half else {}
    model.config = parts.small_transformer(hidden_size=4, **dtype)
    chunk = parts.data_parallel(model, use_distributed_optimizer=distributed)
    settings = {"lr": lr, "min_lr": lr / 10, "use_distributed_optimizer": distributed, **dtype}
    overrides = None
    if "decoupled_lr" in OptimizerConfig.__dataclass_fields__:
        settings.update(rates)
    elif rates:
        # Some commits before 0.16 have it in the arguments only, and take what follows from it.
        key = optimizer_config.ParamKey(attr="is_embedding_or_output_parameter")
        own = {"lr": rates["decoupled_lr"], "min_lr": rates["decoupled_min_lr"]}
        overrides = {key: OptimizerConfig(optimizer="adam", clip_grad=0.0, **settings | own)}
    made = parts.optimizer(chunk, overrides, weight_decay=0.01, **settings)
    made.model = chunk
    return made


def _step(optimizer: Any) -> None:
    """Take a step, each optimizer by gradients of its own."""
    import torch

    for parameter in optimizer.model.parameters():
        parameter.main_grad.copy_(torch.randn(parameter.shape))
    optimizer.step()


CONTRACT = parts.contract("megatron.param-groups-by-lr", functools.partial(wrong, other_rates=True))
