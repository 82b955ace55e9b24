"""What is saved of each parameter is its own master weight, and Adam's moments of its own gradient."""

import contextlib
from collections.abc import Iterable
from typing import Any

from overlay.compat.contracts import megatron_parts as parts
from overlay.errors import OverlayError

BETAS = (0.9, 0.95)
#: Elements of a bucket, of which there are several.
BUCKET = 5000


@parts.on_one_rank
def wrong(_seed: str) -> str:
    """Return which parameters are saved with another's state, empty if none is."""
    import torch

    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        model, optimizer, gradients, before = _trained(dtype)
        for efficient in (False, True):
            if found := _others(_save(model, optimizer, efficient=efficient), gradients, before):
                return found
        if found := _round_trip(model, optimizer) or _shifted(dtype, model, optimizer):
            return found
    return ""


def _others(state: dict[str, dict[str, Any]], gradients: dict[str, Any], weights: dict[str, Any]) -> str:
    """Return which parameter is saved with the state of another, empty if none is."""
    import torch

    if state.keys() != gradients.keys():
        return f"what is saved is of the parameters {sorted(state)}"
    for name, tensors in state.items():
        grad = gradients[name]
        exact = {"exp_avg": (1 - BETAS[0]) * grad, "exp_avg_sq": (1 - BETAS[1]) * grad**2}
        for key, value in exact.items():
            if not torch.allclose(tensors[key], value, rtol=2.0**-20, atol=1e-12):
                return f"{key} of {name} is that of another parameter"
        if not torch.equal(tensors["param"].to(weights[name].dtype), weights[name]):
            return f"the master weight of {name} is that of another parameter"
    return ""


def _round_trip(model: Any, optimizer: Any) -> str:
    """Load what was saved, and save it again."""
    import torch

    whole = optimizer.sharded_param_state_fully_reshardable(_keys(model), metadata={})
    plain = {number: {key: one.data.clone() for key, one in state.items()} for number, state in whole.items()}
    _load(optimizer, plain)
    again = optimizer.sharded_param_state_fully_reshardable(_keys(model), metadata={})
    for number, tensors in plain.items():
        for key, value in tensors.items():
            if not torch.equal(again[number][key].data, value):
                return "what is loaded is not what was saved"
    return ""


def _shifted(dtype: Any, model: Any, saver: Any) -> str:
    """Load what is shifted, which is to be refused, and what is not, into an optimizer with one bucket."""
    import torch

    whole = saver.sharded_param_state_fully_reshardable(_keys(model), metadata={})
    plain = {number: {key: one.data.clone() for key, one in state.items()} for number, state in whole.items()}
    weights = list(model.parameters())
    model, optimizer, _, _ = _trained(dtype, weights)
    with torch.no_grad():
        for parameter, weight in zip(model.parameters(), weights, strict=True):
            parameter.copy_(weight)
    _load(optimizer, plain)
    masters = [tensors["param"] for tensors in plain.values()]

    def with_masters(given: Iterable[Any]) -> dict[int, Any]:
        return {
            number: {**plain[number], "param": one.reshape(plain[number]["param"].shape)}
            for number, one in enumerate(given)
        }

    # From the second bucket of the job that saved on, or from a late one; and a later stage of its pipeline.
    for first in (5, 10, 0):
        sizes = [one.numel() for one in masters[first:]]
        moved = torch.cat([one.flatten() for one in masters[first:]]).roll(-3).split(sizes)
        with contextlib.suppress(OverlayError):
            _load(optimizer, with_masters([*masters[:first], *moved]))
            return f"a checkpoint that is shifted from parameter {first} on is loaded"
    # Of other weights, in all parameters or in one, nothing can be said, nor of halves that changed places.
    for others in (
        [one + 1 for one in masters],
        [torch.randn(one.shape) for one in masters],
        [torch.zeros(one.shape) for one in masters],
        [*masters[:-1], torch.randn(masters[-1].shape)],
        [one.flatten().roll(one.numel() // 2) if one.numel() > 2**10 else one for one in masters],
    ):
        _load(optimizer, with_masters(others))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.5)
    _load(optimizer, plain)
    return ""


def _trained(dtype: Any, like: Any = None) -> tuple[Any, Any, dict[str, Any], dict[str, Any]]:
    """Return a model after one step of Adam, its optimizer, the gradients, and the weights that it has.

    It has several buckets, or one if it is to have the sizes of other parameters.
    """
    import torch

    class Model(torch.nn.Module):
        """Parameters of odd sizes, which fill no bucket."""

        def __init__(self) -> None:
            super().__init__()
            self.config = parts.small_transformer()
            for number in range(14):
                drawn = tuple((2 * torch.randint(4, 35, (2,)) + 1).tolist())
                size = like[number].shape if like else drawn
                # As an adapter begins: after a small step it is near zero, where float16 is coarse.
                value = torch.zeros(size, dtype=dtype) if number % 2 else torch.randn(size, dtype=dtype)
                self.register_parameter(f"weight{number}", torch.nn.Parameter(value))

    model = parts.data_parallel(
        Model(), use_distributed_optimizer=True, overlap_grad_reduce=not like, bucket_size=BUCKET
    )
    (optimizer,) = parts.optimizer(
        model, lr=1e-6 if dtype == torch.float16 else 1e-2, adam_beta1=BETAS[0], adam_beta2=BETAS[1],
        bf16=dtype == torch.bfloat16, fp16=dtype == torch.float16, loss_scale=1.0, params_dtype=dtype,
        use_distributed_optimizer=True,
    ).chained_optimizers  # fmt: skip
    gradients = {}
    for name, parameter in model.module.named_parameters():
        parameter.main_grad.copy_(torch.randn(parameter.shape))
        gradients[name] = parameter.main_grad.float()
    optimizer.step()
    weights = {name: value.detach().clone() for name, value in model.module.named_parameters()}
    return model, optimizer, gradients, weights


def _keys(model: Any) -> dict[str, Any]:
    """Return the sharded state of the model."""
    from megatron.core.dist_checkpointing import ShardedTensor

    return {
        name: ShardedTensor.from_rank_offsets(name, value) for name, value in model.module.named_parameters()
    }


def _save(model: Any, optimizer: Any, *, efficient: bool) -> dict[str, dict[str, Any]]:
    """Return what is saved of each parameter by its name."""
    state = optimizer.sharded_param_state_fully_reshardable(
        _keys(model), metadata={"distrib_optim_fully_reshardable_mem_efficient": efficient}
    )
    found: dict[str, dict[str, Any]] = {}
    for tensors in state.values():
        for key, sharded in tensors.items():
            found.setdefault(sharded.key.rpartition(".")[2], {})[key] = sharded.data
    return found


def _load(optimizer: Any, state: dict[int, Any]) -> None:
    """Load the state of the parameters, as the load of a checkpoint does."""
    setting = optimizer._set_main_param_and_optimizer_states

    def with_step(parameter: Any, tensors: dict[str, Any]) -> None:
        # torch's own Adam counts steps for each parameter, which this load of Megatron's has not heard of.
        setting(parameter, {**optimizer._get_main_param_and_optimizer_states(parameter), **tensors})

    optimizer._set_main_param_and_optimizer_states = with_step
    given = {"param_state": state, "param_state_sharding_type": "fully_reshardable"}
    try:
        optimizer.load_state_dict({**optimizer.state_dict(), **given})
    finally:
        del optimizer._set_main_param_and_optimizer_states


CONTRACT = parts.contract("megatron.reshardable-checkpoint", wrong)
