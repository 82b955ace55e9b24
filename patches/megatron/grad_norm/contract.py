"""All ranks clip by the norm of the whole model's gradient, whatever Transformer Engine marked."""

import functools
import gc
import math
from typing import Any

from overlay.compat.contracts import megatron_parts as parts
from overlay.compat.contracts.rank_cases import Cases, RankCases, Row, within

#: The last Transformer Engine that marks the weights of grouped experts, and one that does not.
MARKED, UNMARKED = "2.12.0", "2.15.0"
#: Of a parameter, its shape over all ranks, with one of experts for each expert parallel rank in front; the
#: dimension of the split, `None` if every rank has it whole; and whether it is of experts.
Split = tuple[tuple[int, ...], "int | None", bool]

#: Experts of the whole model, and sizes of theirs. Heads of attention.
EXPERTS, WIDE, NARROW, HEADS = 4, 8, 4, 4
#: A bound that every gradient drawn here exceeds, and the rate of a step.
CLIP, RATE = 0.5, 0.25
#: By number of ranks, how they share experts: as parts of each, or whole ones, or parts of some.
LAYOUTS: dict[int, dict[str, dict[str, int]]] = {
    2: {
        "parts of experts": {"tensor": 2, "expert_tensor": 2},
        "whole experts": {"tensor": 2, "expert": 2, "expert_tensor": 1},
    },
    4: {
        "parts of experts": {"tensor": 4, "expert_tensor": 4},
        "whole experts": {"tensor": 4, "expert": 4, "expert_tensor": 1},
        "parts of some": {"tensor": 2, "expert": 2, "expert_tensor": 2},
        "some on each pair": {"tensor": 2, "expert": 2, "expert_tensor": 1},
    },
}
KINDS = ("experts", "biased experts", "single experts", "undivided", "sinks", "all")


def cases(world: int) -> Cases:
    """Return a case for each layout and kind of layer, by SGD and by the distributed optimizer.

    And one in which another project has replaced `_get_param_groups`, as ms-swift does for rates of its own.
    """
    found: Cases = []
    for layout, sizes in LAYOUTS[world].items():
        for kind in KINDS:
            if kind == "single experts" and sizes["expert_tensor"] > 1:  # which Megatron refuses
                continue
            for name, distributed in (("plain", False), ("distributed", True)):
                case = functools.partial(_step, kind, distributed=distributed)
                found.append((f"{kind}, {layout}, {name}", sizes, case))
        found.append((f"all, {layout}, other groups", sizes, functools.partial(_with_other_groups, "all")))
    return found


def _with_other_groups(kind: str) -> Row:
    """Take a step with parameter groups that are not made by what stands at `_get_param_groups`."""
    import inspect

    from megatron.core import optimizer

    from overlay.compat.cuda_on_cpu import replaced

    upstreams = inspect.unwrap(vars(optimizer)["_get_param_groups"])
    with replaced(optimizer, "_get_param_groups", upstreams):
        return _step(kind, distributed=False)


def _step(kind: str, *, distributed: bool) -> Row:
    """Take a step, and return how far norm, update and joined parts are off from the whole model.

    `kept` is the number of optimizers and states that outlive the last reference, without the collector.
    """
    import torch
    from megatron.core.tensor_parallel import set_defaults_if_not_set_tensor_model_parallel_attributes

    model, splits = _model(kind)
    for parameter in model.parameters():  # as Megatron's training does with every model
        set_defaults_if_not_set_tensor_model_parallel_attributes(parameter)
    dims = {name: one.partition_dim for name, one in model.named_parameters()}
    parallel = parts.data_parallel(model, use_distributed_optimizer=distributed)
    optimizer = parts.optimizer(
        parallel, gloo=False, optimizer="adam" if distributed else "sgd", lr=RATE, clip_grad=CLIP,
        sgd_momentum=0.0, use_distributed_optimizer=distributed,
    )  # fmt: skip
    draw = parts.generator()
    squares, wanted = 0.0, {}
    for name, (shape, dim, experts) in splits.items():
        whole = torch.randn(shape, generator=draw, dtype=torch.float64)
        squares += float(whole.square().sum())
        wanted[name] = _part(whole, dim, experts=experts)
    parameters = dict(model.named_parameters())
    before = {name: one.detach().double().clone() for name, one in parameters.items()}
    for name, one in parameters.items():
        one.main_grad.copy_(wanted[name])
    _, norm, _ = optimizer.step()
    right = math.sqrt(squares)
    off = [
        parts.relative_error(before[name] - one.detach().double(), wanted[name] * RATE * CLIP / right)
        for name, one in parameters.items()
        if not distributed  # Adam's first step is the same for gradients of any size
    ]
    witnesses = _witnesses(optimizer)
    gc.disable()
    del optimizer
    kept = sum(one() is not None for one in witnesses)
    gc.enable()
    return {
        "norm": abs(float(norm) / right - 1),
        "update": max(off, default=0.0),
        # Transformer Engine itself says 0 of all experts where Megatron does not tell it how they are split.
        "joined": float(
            sum(_badly_joined(parameters[name], splits[name][1]) for name in splits if dims[name] < 0)
        ),
        "kept": float(kept),
    }


def _badly_joined(parameter: Any, dim: int | None) -> bool:
    """Return whether parts along a dimension make another whole, joined as the parameter says."""
    import torch

    if not parameter.tensor_model_parallel or dim is None:
        return False
    shape = [2 * size if place == dim else size for place, size in enumerate(parameter.shape)]
    whole = torch.arange(2 * parameter.numel()).view(shape)
    joined = torch.cat(whole.chunk(2, dim), parameter.partition_dim)
    return not torch.equal(joined, whole) or parameter.partition_stride != 1


def _witnesses(optimizer: Any) -> list[Any]:
    """Return weak references to an optimizer and its states."""
    import weakref

    own = [one.optimizer for one in optimizer.chained_optimizers if one.optimizer is not None]
    states = [state for one in own for state in one.state.values()]
    tensors = [value for state in states for value in state.values() if hasattr(value, "untyped_storage")]
    return [weakref.ref(one) for one in (optimizer, *tensors)]


def _model(kind: str) -> tuple[Any, dict[str, Split]]:
    """Return a model, and how each of its parameters is split."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.extensions.transformer_engine import TELinear
    from megatron.core.transformer.module import MegatronModule

    layout = parts.layout()
    config = parts.small_transformer(
        num_attention_heads=HEADS,
        num_moe_experts=EXPERTS,
        expert_tensor_parallel_size=parallel_state.get_expert_tensor_parallel_world_size(),
        sequence_parallel=layout["expert_model_parallel_size"] > 1,  # some releases insist
        add_bias_linear=False,
        **layout,
    )
    model = MegatronModule(config)
    splits: dict[str, Split] = {}
    if kind in ("experts", "biased experts", "all"):
        splits.update(_add_experts(model, biased=kind == "biased experts"))
    if kind == "single experts":
        splits.update(_add_single_experts(model))
    if kind in ("undivided", "all"):
        model.down = TELinear(
            6, 4, parallel_mode="duplicated", config=config, init_method=_ones, bias=False,
            skip_bias_add=False, skip_weight_param_allocation=False,
        )  # fmt: skip
        splits["down.weight"] = ((4, 6), None, False)
    if kind in ("sinks", "all"):
        attention = torch.nn.Module()
        # As Megatron's and Transformer Engine's attention register it, without a mark.
        own = HEADS // layout["tensor_model_parallel_size"]
        attention.register_parameter("softmax_offset", torch.nn.Parameter(torch.zeros(own)))
        model.attention = attention
        splits["attention.softmax_offset"] = ((HEADS,), 0, False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()  # a step is all there is then, and none of it is rounded away
    _without_kernels()
    return model, splits


def _add_experts(model: Any, *, biased: bool) -> dict[str, Split]:
    """Give a model this rank's experts, and return how each of their parameters is split."""
    from megatron.core import parallel_state
    from megatron.core.extensions import transformer_engine as te

    expert = parallel_state.get_expert_model_parallel_world_size()
    splits: dict[str, Split] = {}
    for layer, made, sizes in (
        ("fc1", te.TEColumnParallelGroupedLinear, (NARROW, WIDE)),
        ("fc2", te.TERowParallelGroupedLinear, (WIDE, NARROW)),
    ):
        module = made(
            EXPERTS // expert, *sizes, config=model.config, init_method=_ones, bias=biased,
            skip_bias_add=biased, is_expert=True, tp_comm_buffer_name=None,
        )  # fmt: skip
        setattr(model, layer, module)
        for name, _ in module.named_parameters():
            bias = name.startswith("bias")
            shape = sizes[1:] if bias else sizes[::-1]
            dim = 0 if layer == "fc1" else None if bias else 1
            # Other experts on the other ranks.
            splits[f"{layer}.{name}"] = ((expert, *shape), dim, True)
    return splits


def _add_single_experts(model: Any) -> dict[str, Split]:
    """Give a model the second layers of this rank's experts, each a module of its own, and do the same."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import RowParallelLinear

    expert = parallel_state.get_expert_model_parallel_world_size()
    splits: dict[str, Split] = {}
    for place in range(EXPERTS // expert):
        module = RowParallelLinear(
            NARROW, WIDE, config=model.config, init_method=_ones, bias=True, input_is_parallel=True,
            skip_bias_add=True, is_expert=True,
        )  # fmt: skip
        setattr(model, f"expert{place}", module)
        splits[f"expert{place}.weight"] = ((expert, WIDE, NARROW), 1, True)
        splits[f"expert{place}.bias"] = ((expert, WIDE), None, True)
    return splits


def _part(whole: Any, dim: int | None, *, experts: bool) -> Any:
    """Return what this rank has of a parameter."""
    from megatron.core import parallel_state

    if experts:
        whole = whole[parallel_state.get_expert_model_parallel_rank()]
    if dim is None:
        return whole
    kind = "expert_tensor" if experts else "tensor_model"
    size, rank = (getattr(parallel_state, f"get_{kind}_parallel_{one}")() for one in ("world_size", "rank"))
    return whole.chunk(size, dim)[rank]


def _ones(tensor: Any) -> Any:
    return tensor.fill_(1.0)


def _without_kernels() -> None:
    """Let Megatron use torch's optimizers and its own norms, which Transformer Engine stands in front of."""
    import torch
    from megatron.core import optimizer, utils
    from megatron.core.optimizer import clip_grads, distrib_optimizer

    vars(optimizer).update(SGD=torch.optim.SGD, Adam=torch.optim.AdamW, USING_PYTORCH_OPTIMIZER=True)
    vars(distrib_optimizer).update(Adam=torch.optim.AdamW)
    vars(clip_grads).update(
        multi_tensor_applier=utils.local_multi_tensor_applier,
        l2_norm_impl=utils.local_multi_tensor_l2_norm,
        multi_tensor_scale_impl=utils.local_multi_tensor_scale,
        multi_tensor_scale_tensor_impl=None,
    )


CASES = RankCases(
    "megatron.grad-norm",
    "norm or update is not that of the whole model",
    within(1e-5),  # relative, of norms and updates in float32 whose steps are taken from zero
    te=UNMARKED,
)
wrong = CASES.wrong

CONTRACT = CASES.contract()
