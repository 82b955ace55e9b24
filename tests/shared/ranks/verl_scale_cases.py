"""Steps of verl's Megatron engine on data parallel ranks, each against one process; `engine_main` runs them.

For the values of a critic stand the log-probabilities of a language model: the loss does not know.
"""

from __future__ import annotations

import functools
import itertools
from types import SimpleNamespace
from typing import Any

import torch
from megatron.core import parallel_state as mpu
from verl.trainer.distillation.losses import distillation_ppo_loss
from verl.utils import tensordict_utils as tu
from verl.workers.config import DistillationConfig, DistillationLossConfig, McoreActorConfig
from verl.workers.utils import losses

from overlay.compat import cpu_engine, cpu_reference
from overlay.compat.cpu_steps import seed

PROMPT = 2
CONFIG = SimpleNamespace(cliprange_value=0.5, loss_agg_mode="token-mean")
#: Samples in a micro-batch, of a rank's four.
SIZES = (1, 2, 4)
#: Tokens that a teacher tells the log-probabilities of.
BEST = 5
#: The distances to a teacher that verl recommends as a loss and as a reward.
AS_LOSS, AS_REWARD = "forward_kl_topk", "k1"


def cases(world: int) -> list[tuple[Any, ...]]:
    """Return steps of a critic for each cut, of distillations, and of fine-tuning with a loss per token."""
    critics = [(f"critic, {size}", 1, 1, functools.partial(critic, world, size)) for size in SIZES]
    distilled = [
        (f"distillation, {mode}", 1, 1, functools.partial(distillation, world, mode))
        for mode in (AS_LOSS, AS_REWARD)
    ]
    per_token = [(f"per token: {flag}", 1, 1, functools.partial(sft, world, flag)) for flag in (False, True)]
    stages = [("per token: two stages", 1, 2, functools.partial(sft, world, True))]
    turns = [("per token: two stages in turn", 1, 2, 1, 2, functools.partial(sft, world, True, layers=4))]
    return [*critics, *distilled, *per_token, *stages, *turns]


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


def distillation(world: int, mode: str) -> dict[str, list[float]]:
    """Train two steps of a distillation for each cut, the second one of a longer mini-batch.

    Upstream's second step reads what the first one has left in the configuration.

    Returns:
        "errors": of each cut's two gradients against one process. "between cuts": how far the gradients of
        the second step are from each other, for each pair of cuts.

    """
    weights = cpu_engine.weights_of(_engine())
    errors, gradients = [], []
    for size in SIZES:
        config = McoreActorConfig(rollout_n=1, ppo_micro_batch_size_per_gpu=size)
        settings = DistillationLossConfig(
            loss_mode=mode,
            topk=BEST,
            use_policy_gradient=mode == AS_REWARD,
            use_task_rewards=False,
            loss_max_clamp=None,
        )
        loss = functools.partial(
            distillation_ppo_loss,
            config=config,
            distillation_config=DistillationConfig(distillation_loss=settings),
        )
        draw = torch.Generator().manual_seed(seed())
        for longer in (0, 6):
            batch, reference = _with_teacher(*_batch(world, size, draw, longer), mode, draw, weights)
            got, want = _gradients(batch, loss, reference, outputs=cpu_reference.all_log_probs)
            errors.append(cpu_engine.compare(got, want)[1])
        gradients.append(got)
    pairs = [cpu_engine.compare(one, other)[1] for one, other in itertools.combinations(gradients, 2)]
    return {"errors": errors, "between cuts": pairs}


def _with_teacher(
    batch: Any, responses: list[int], mode: str, draw: torch.Generator, weights: Any
) -> tuple[Any, Any]:
    """Add what a teacher says of each token, and return the batch and its loss for one process."""
    rows = batch["input_ids"].unbind()
    scores = [torch.randn(len(row), cpu_engine.VOCABULARY, generator=draw) for row in rows]
    topk = mode == AS_LOSS
    # The distribution at a place is that of the token after it, as it is of the student.
    sharp = [(2 * score).log_softmax(dim=-1) for score in scores]
    after = [row.roll(-1)[:, None] for row in rows]
    ids = [values.topk(BEST).indices for values in sharp] if topk else after
    told = [values.gather(1, which) for values, which in zip(sharp, ids, strict=True)]
    batch["teacher_ids"], batch["teacher_logprobs"] = cpu_engine.nested(ids), cpu_engine.nested(told)
    # The policy is still the old one. Its own loss is computed too, and thrown away.
    old = [cpu_reference.log_probs(weights, row, heads=cpu_engine.HEADS) for row in rows]
    batch["old_log_probs"] = cpu_engine.nested(
        [row[-length:] for row, length in zip(old, responses, strict=True)]
    )
    batch["advantages"] = cpu_engine.nested([torch.randn(length, generator=draw) for length in responses])
    tu.assign_non_tensor(batch, distillation_use_topk=topk)

    def reference(outputs: Any) -> torch.Tensor:
        terms = []
        for output, which, values, length in zip(outputs, ids, told, responses, strict=True):
            teacher = values[:-1].double()
            student = output.gather(1, which[:-1])
            if topk:
                terms.append((teacher.exp() * (teacher - student)).sum(dim=-1).clamp(min=0)[-length:])
            else:
                # At the old policy a token's gradient is that of its log-probability times its advantage.
                terms.append(((student - teacher).detach() * student)[-length:, 0])
        return torch.cat(terms).mean()

    return batch, reference


def _batch(world: int, size: int, draw: torch.Generator, longer: int = 0) -> tuple[Any, list[int]]:
    """Draw a batch of prompts and responses for all ranks, and return it and the lengths of the responses."""
    # A rank's responses are longer than those of the rank before it: with as many tokens on each rank
    # upstream would be right wherever a rank has one micro-batch.
    responses = [
        length + 5 * rank + longer
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
    ratio, error = cpu_engine.compare(*_gradients(batch, loss, reference, **settings))
    return {"ratio": ratio, "error": error}


def _gradients(
    batch: Any, loss: Any, reference: Any, *, outputs: Any = cpu_reference.log_probs, **settings: Any
) -> tuple[Any, Any]:
    """Train on this rank's share of a batch, and return the gradient and that of one process."""
    engine = _engine(**settings)
    _, want = cpu_reference.loss_and_gradient(
        cpu_engine.weights_of(engine),
        batch["input_ids"].unbind(),
        reference,
        heads=cpu_engine.HEADS,
        outputs=outputs,
    )
    share = tu.chunk_tensordict(batch, mpu.get_data_parallel_world_size())[mpu.get_data_parallel_rank()]
    cpu_engine.train(engine, share, loss)
    return cpu_engine.gradients_of(engine), want


def _engine(**settings: Any) -> Any:
    """Return an engine with the weights that all of a run begin with."""
    return cpu_engine.build_engine(cap=None, dynamic=False, seed=seed(), **settings)
