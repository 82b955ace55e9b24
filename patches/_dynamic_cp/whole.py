"""A loss of any kind under dynamic context parallelism: every rank computes it from the whole micro-batch.

The outputs of the other subgroups are put beside a rank's own, detached. Each rank then has the loss of the
micro-batch, as one process has it, and the gradient of its own shard; the gradients of all ranks add up to
the gradient of the loss, whatever function of the outputs it is.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from overlay.patches._dynamic_cp.plan import Plan, part_of


def on_whole(loss_function: Callable[..., Any], whole: Any, plan: Plan, dp_size: int) -> Callable[..., Any]:
    """Return a loss function that is given a rank's part of a micro-batch, and computes the whole.

    Must be called on all W data parallel ranks, in the same order. The loss is what one process has, times
    `dp_size`; metrics are what one process has.

    Args:
        loss_function: verl's, or a user's: of `model_output`, `data` and `dp_group`.
        whole: The micro-batch, all of its sequences.
        plan: Of the micro-batch.
        dp_size: The factor by which losses are multiplied.

    """
    from verl.utils import tensordict_utils as tu

    def loss_of_whole(model_output: Any, data: Any, dp_group: Any = None) -> Any:
        device = data["input_ids"].device
        micro_batch = whole.to(device).clone(recurse=False)
        size = tu.get_non_tensor_data(data, "local_cp_size", default=None)
        tu.assign_non_tensor(micro_batch, dp_size=1, local_cp_size=size)
        lengths = micro_batch["input_ids"].offsets().diff().tolist()
        outputs = model_output if len(plan) == 1 else collect(model_output, lengths, plan, own=True)
        with _same_draws(outputs):
            loss, metrics = loss_function(model_output=outputs, data=micro_batch, dp_group=dp_group)
        return loss * dp_size, metrics

    return loss_of_whole


def collect(
    outputs: dict[str, Any],
    lengths: Sequence[int],
    plan: Plan,
    *,
    own: bool = False,
) -> dict[str, Any]:
    """Return the outputs of the whole micro-batch, in the order of its sequences, on every rank.

    Args:
        outputs: By name, nested tensors of this subgroup's sequences, [sequences, tokens, ...], the same on
            all its ranks.
        lengths: Tokens of each sequence of the micro-batch.
        plan: Of the micro-batch.
        own: Whether this rank's rows keep their gradient. All others are detached.

    """
    import torch
    import torch.distributed as dist
    from megatron.core import parallel_state as mpu

    offsets = [0]
    for length in lengths:
        offsets.append(offsets[-1] + length)
    rank, group = mpu.get_data_parallel_rank(), mpu.get_data_parallel_group()
    start, _, indices = part_of(plan, rank)
    collected = {}
    for name in sorted(outputs):
        rows = outputs[name].detach()
        # One rank of each subgroup fills in its rows, all others add zeros: exact in every dtype.
        values = rows.values().new_zeros(offsets[-1], *rows.values().shape[1:])
        if rank == start:
            for index, row in zip(indices, rows.unbind(), strict=True):
                values[offsets[index] : offsets[index + 1]] = row
        dist.all_reduce(values, group=group)
        if own:
            places = [torch.arange(offsets[index], offsets[index + 1]) for index in indices]
            values = values.index_copy(0, torch.cat(places).to(values.device), outputs[name].values())
        bounds = torch.tensor(offsets, device=values.device)
        collected[name] = torch.nested.nested_tensor_from_jagged(values, bounds)
    return collected


@contextlib.contextmanager
def _same_draws(outputs: dict[str, Any]) -> Iterator[None]:
    """Let a loss draw the same random numbers on all ranks, from a seed that is made of the outputs.

    Afterwards random numbers go on as if nothing had been drawn.
    """
    import torch

    first = next((outputs[name].values() for name in sorted(outputs)), None)
    if first is None:
        yield
        return
    bits = first.detach().to(torch.float32).contiguous().view(torch.int32)
    seed = int(bits.sum(dtype=torch.int64))
    kind, device = first.device.type, first.device
    with torch.random.fork_rng(
        devices=[] if kind == "cpu" else [device], device_type="cuda" if kind == "cpu" else kind
    ):
        torch.default_generator.manual_seed(seed)
        if kind != "cpu":
            getattr(torch, kind).manual_seed(seed)
        yield
