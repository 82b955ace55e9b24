"""A resumed optimizer has in each parameter group what the one that was saved had, and Adam's moments."""

import copy
import functools
import itertools
import random
from collections.abc import Iterator
from typing import Any

from overlay.compat.contracts import megatron_parts as parts
from overlay.compat.contracts.forked import wrong_on_ranks

#: Resumes that are drawn beside those that are written down.
DRAWS = 200


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
    return _among_more(draw) if other_rates else ""


def wrong_with_other_rates(seed: str) -> str:
    """Return what differs after a resume, also with other rates, and of groups over two ranks."""
    look = functools.partial(_on_two_ranks, seed)
    modules = ("megatron.core.optimizer", "megatron.core.distributed")
    return wrong_on_ranks(look, *modules) or wrong(seed, other_rates=True)


def _among_more(draw: random.Random) -> str:
    """Return which of several groups gets another's rate where the rates of some have changed."""
    low, middle, high = (draw.uniform(1.1, 1.9) * scale for scale in (1e-5, 1e-4, 1e-3))
    rest = draw.uniform(1e-6, 9e-6)
    one = {"rest": rest, "tower": low, "head": middle}
    # One group passes another, up or down; all are scaled, so that one gets another's old rate; none changes.
    tens = {name: 10 * rate for name, rate in one.items()}
    evenly = {"rest": 1e-4, "tower": 1e-3, "head": 1e-2}
    # One keeps its rate, or is frozen, and the others are scaled by what lies between them.
    frozen, warm = ({"rest": 1e-4, "tower": rate, "adapter": 1e-4, "head": 1e-3} for rate in (0.0, 1e-5))
    for saved, asked in (
        (one, {**one, "tower": high}),
        (one, {**one, "head": low / 5}),
        (one, tens),
        (evenly, {"rest": 1e-3, "tower": 1e-2, "head": 1e-1}),
        (evenly, {"rest": 1e-3, "tower": 2e-3, "head": 5e-2}),
        (one, one),
        *((kept, {**kept, "adapter": 1e-3, "head": 1e-2}) for kept in (frozen, warm)),
        *((kept, {**kept, "rest": 1e-3, "adapter": 1e-3, "head": 1e-2}) for kept in (frozen, warm)),
        *(_drawn(draw) for _ in range(DRAWS)),
    ):
        if found := _changed_sides(saved, asked):
            return f"from {saved}, resumed with {asked}, groups go on with {found}"
    return ""


def _drawn(draw: random.Random) -> tuple[dict[str, float], dict[str, float]]:
    """Return rates that were saved, of which one may be 0, and others: some kept, some scaled by a factor.

    One group may so get what another had, if they keep their order: two that changed places look the same.
    """
    names = ("rest", "tower", "adapter", "head", "value")[: draw.randint(3, 5)]
    while True:
        saved = {name: 10 ** draw.uniform(-6, -2) for name in names}
        one, two = draw.sample(names[1:], 2)
        between = saved[one] / saved[two]
        factor = draw.choice((0.1, 0.3, 2, 10, draw.uniform(1.5, 50), between))
        if draw.random() < 0.5:
            saved[draw.choice(names[1:])] = 0.0
        asked = {name: rate * (factor if draw.random() < 0.6 else 1) for name, rate in saved.items()}
        if factor != between or _order(saved) == _order(asked):
            return saved, asked


def _order(rates: dict[str, float]) -> list[str]:
    """Return the names of groups as Megatron orders them: by rate, after the one without one of its own."""
    return sorted(rates, key=lambda name: (name != "rest", rates[name]))


def _changed_sides(saved: dict[str, float], asked: dict[str, float]) -> dict[str, float]:
    """Return the rates with which groups go on if these are not what was saved of those of the same name."""
    from megatron.core.optimizer.optimizer import MegatronOptimizer

    there, here = _groups(saved), _groups(asked)
    loaded = MegatronOptimizer._filter_and_reorder_param_groups(here, there)
    got = {group["name"]: own["max_lr"] for group, own in zip(here, loaded, strict=True)}
    return {} if got == saved else got


def _groups(rates: dict[str, float]) -> list[dict[str, Any]]:
    """Return parameter groups in Megatron's order."""
    return [
        {
            "name": name, "params": [], "default_config": name == "rest", "max_lr": rates[name],
            "min_lr": 0.0, "wd_mult": 1.0, "lr_mult": 1.0, "is_expert_parallel": False,
            "is_decoupled_lr": False,
        }
        for name in _order(rates)
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


def _on_two_ranks(seed: str) -> Iterator[str]:
    """Yield what differs after a resume of pipeline stages that have one group each, and one in common."""
    import torch
    import torch.distributed as dist
    from megatron.core.optimizer.optimizer_config import ParamKey

    from overlay.compat import megatron_on_cpu

    megatron_on_cpu.start_megatron(pipeline_model_parallel_size=2)
    draw = random.Random(seed)

    def build(rates: dict[str, float]) -> Any:
        model = torch.nn.Module()
        for name in ("rest", "tower" if dist.get_rank() == 0 else "head"):
            model.register_parameter(name, torch.nn.Parameter(torch.randn(8, 4)))
        model.config = parts.small_transformer(hidden_size=4, bf16=True)
        chunk = parts.data_parallel(model.to(torch.bfloat16), use_distributed_optimizer=True)
        own = {
            ParamKey(name=f"*{name}"): {"max_lr": rates[name], "min_lr": rates[name] / 10}
            for name in ("tower", "head")
        }
        usual: dict[str, Any] = {
            "lr": rates["rest"],
            "min_lr": rates["rest"] / 10,
            "weight_decay": 0.01,
            "bf16": True,
        }
        made = parts.optimizer(chunk, own, use_distributed_optimizer=True, **usual)
        made.model = chunk
        _step(made)
        return made

    one = {
        name: draw.uniform(1.1, 1.9) * rate
        for name, rate in (("rest", 1e-4), ("tower", 1e-5), ("head", 1e-3))
    }
    for saved, asked in (
        (one, one),
        (one, {**one, "tower": 5 * one["head"]}),
        ({**one, "tower": 0.0}, {**one, "tower": 0.0, "head": 10 * one["head"]}),
    ):
        before, after = build(saved), build(asked)
        # As a checkpoint has it, whose groups are those of the first rank.
        states = [before.state_dict()]
        dist.broadcast_object_list(states, src=0)
        after.load_state_dict(states[0])
        told = [(group["max_lr"], len(group["params"])) for group in before.param_groups]
        got = [(group["max_lr"], len(group["params"])) for group in after.param_groups]
        if len(told) != 3 or all(count for _, count in told):
            yield f"of three groups this rank has {told}"
        if [rate for rate, _ in got] != [saved[name] for name in _order(asked)]:
            yield f"from {saved}, resumed with {asked}, a rank goes on with {got}"


CONTRACT = parts.contract("megatron.param-groups-by-lr", wrong_with_other_rates)
