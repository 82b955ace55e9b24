"""Steps of verl's Megatron engine on data parallel ranks, each against one process; `engine_main` runs them.

For the values of a critic stand the log-probabilities of a language model: the loss does not know.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import torch
from megatron.core import parallel_state as mpu
from verl.utils import tensordict_utils as tu
from verl.workers.utils import losses

from overlay.compat import cpu_engine, cpu_reference
from overlay.compat.cpu_steps import seed

PROMPT = 2
CONFIG = SimpleNamespace(cliprange_value=0.5, loss_agg_mode="token-mean")
#: Samples in a micro-batch, of a rank's four.
SIZES = (1, 2, 4)


def cases(world: int) -> list[tuple[Any, ...]]:
    """Return steps of a critic for each cut, and of fine-tuning with a loss per token."""
    critics = [(f"critic, {size}", 1, 1, functools.partial(critic, world, size)) for size in SIZES]
    per_token = [(f"per token: {flag}", 1, 1, functools.partial(sft, world, flag)) for flag in (False, True)]
    stages = [("per token: two stages", 1, 2, functools.partial(sft, world, True))]
    turns = [("per token: two stages in turn", 1, 2, 1, 2, functools.partial(sft, world, True, layers=4))]
    return [*critics, *per_token, *stages, *turns]


def critic(world: int, size: int) -> dict[str, Any]:
    """Train a step of a critic with so many samples in a micro-batch."""
    draw = torch.Generator().manual_seed(seed())
    batch, responses = _batch(world, size, draw)
    drawn = {
        name: [torch.randn(length, generator=draw) for length in responses] for name in ("values", "returns")
    }
    for name, rows in drawn.items():
        batch[name] = cpu_engine.nested(rows)

    def reference(outputs: Any) -> torch.Tensor:
        terms = []
        for row, old, target in zip(outputs, drawn["values"], drawn["returns"], strict=True):
            value, before, goal = row[-len(old) :], old.double(), target.double()
            near = before + (value - before).clamp(-CONFIG.cliprange_value, CONFIG.cliprange_value)
            terms.append(0.5 * torch.maximum((value - goal) ** 2, (near - goal) ** 2))
        return torch.cat(terms).mean()

    def loss(model_output: Any, data: Any, dp_group: Any = None) -> Any:
        values = {"values": model_output["log_probs"]}
        return losses.value_loss(CONFIG, values, data, dp_group)

    return _compared(batch, loss, reference)


def _batch(world: int, size: int, draw: torch.Generator) -> tuple[Any, list[int]]:
    """Draw a batch of prompts and responses for all ranks, and return it and the lengths of the responses."""
    # A rank's responses are longer than those of the rank before it: with as many tokens on each rank
    # upstream would be right wherever a rank has one micro-batch.
    responses = [
        length + 5 * rank
        for rank in range(world)
        for length in torch.randint(1, 6, (4,), generator=draw).tolist()
    ]
    batch = cpu_engine.random_batch(
        [PROMPT + length for length in responses], seed=seed(), micro_batch_size_per_gpu=size
    )
    tokens = batch["input_ids"].unbind()
    batch["prompts"] = cpu_engine.nested([row[:PROMPT] for row in tokens])
    batch["responses"] = cpu_engine.nested([row[PROMPT:] for row in tokens])
    batch["response_mask"] = cpu_engine.nested([torch.ones(length).long() for length in responses])
    batch["loss_mask"] = batch["response_mask"]
    return batch, responses


def sft(world: int, per_token_loss: bool, layers: int = cpu_engine.LAYERS) -> dict[str, Any]:
    """Train a step of supervised fine-tuning, with Megatron's `calculate_per_token_loss` or without."""
    shape = cpu_engine.Shape(layers=layers)
    batch = cpu_engine.random_batch([5, 3, 6, 4] * world, seed=seed(), micro_batch_size_per_gpu=2)
    reference = cpu_reference.token_mean_loss(batch["loss_mask"].unbind())
    loss = functools.partial(losses.sft_loss, None)
    return _compared(batch, loss, reference, shape=shape, per_token_loss=per_token_loss)


def _compared(batch: Any, loss: Any, reference: Any, **settings: Any) -> dict[str, Any]:
    """Train on this rank's share of a batch, and compare the gradient with that of one process."""
    # The weights are those that all of a run begin with.
    engine = cpu_engine.build_engine(cap=None, dynamic=False, seed=seed(), **settings)
    _, want = cpu_reference.loss_and_gradient(
        cpu_engine.weights_of(engine), batch["input_ids"].unbind(), reference, heads=cpu_engine.HEADS
    )
    share = tu.chunk_tensordict(batch, mpu.get_data_parallel_world_size())[mpu.get_data_parallel_rank()]
    cpu_engine.train(engine, share, loss)
    ratio, error = cpu_engine.compare(cpu_engine.gradients_of(engine), want)
    return {"ratio": ratio, "error": error}
