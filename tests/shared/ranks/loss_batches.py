"""What losses are tried on: batches of a policy, uneven plans, and verl's own loss in one process."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from verl.utils import tensordict_utils as tu

from overlay.compat import cpu_engine
from overlay.compat.cuda_on_cpu import replaced
from overlay.patches._dynamic_cp.plan import Plan, allowed_sizes, check_plan

FLOATS = ("advantages", "old_log_probs", "ref_log_prob", "teacher_logprobs")


def policy_batch(
    draw: random.Random, log_probs: Callable[[torch.Tensor], torch.Tensor], count: int, **settings: Any
) -> Any:
    """Draw a batch of a policy. Responses are uneven, and of the first one no token counts.

    `draw`: what to draw from. `log_probs`: of the policy, for the tokens of a sequence. The old policy, the
    reference and the teacher are near it. `count`: sequences. `settings`: verl's, of the batch.
    """
    prompts = [draw.randint(1, 4) for _ in range(count)]
    responses = [draw.choice([1, 2, 3, draw.randint(4, 14)]) for _ in range(count)]
    lengths = [prompt + response for prompt, response in zip(prompts, responses, strict=True)]
    seed = draw.randrange(2**31)
    batch = cpu_engine.random_batch(lengths, seed=seed, **settings)
    noise = torch.Generator().manual_seed(seed + 1)
    tokens = batch["input_ids"].unbind()
    now = [log_probs(row).detach().float() for row in tokens]
    masks = [torch.randint(0, 2, (length,), generator=noise) for length in responses]
    for mask in masks:
        mask[0] = 1
    masks[0][:] = 0

    def near(scale: float) -> Any:
        shifts = [scale * torch.randn(length, generator=noise) for length in responses]
        return cpu_engine.nested([row[-len(by) :] + by for row, by in zip(now, shifts, strict=True)])

    batch["prompts"] = cpu_engine.nested([row[:size] for row, size in zip(tokens, prompts, strict=True)])
    batch["responses"] = cpu_engine.nested([row[size:] for row, size in zip(tokens, prompts, strict=True)])
    batch["response_mask"] = cpu_engine.nested(masks)
    counted = [torch.cat([mask.new_zeros(size), mask]) for mask, size in zip(masks, prompts, strict=True)]
    batch["loss_mask"] = cpu_engine.nested(counted)
    batch["advantages"] = cpu_engine.nested([torch.randn(length, generator=noise) for length in responses])
    batch["old_log_probs"], batch["ref_log_prob"] = near(0.4), near(1.0)
    # For each token of the prompt as well, as verl's teachers answer.
    teacher = [torch.cat([row, row.new_zeros(1)]) for row in now]
    teacher = [row + 0.5 * torch.randn(len(row), generator=noise) for row in teacher]
    batch["teacher_logprobs"] = cpu_engine.nested([row[:, None] for row in teacher])
    return batch


def dealt(draw: random.Random, count: int, ranks: int, layout: int | str) -> Plan:
    """Deal `count` sequences out, to subgroups of `layout` ranks or of several sizes, and not evenly."""
    if isinstance(layout, int):
        blocks = [(start, layout) for start in range(0, ranks, layout)]
    else:
        blocks = _of_several_sizes(draw, ranks)
    members: list[list[int]] = [[] for _ in blocks]
    for index, place in enumerate(draw.sample(range(count), count)):
        # One to each, and of the others half to the first.
        to = index if index < len(blocks) else draw.choice([0, draw.randrange(len(blocks))])
        members[to].append(place)
    plan = tuple((*block, tuple(sorted(part))) for block, part in zip(blocks, members, strict=True))
    check_plan(plan, count, ranks)
    return plan


def _of_several_sizes(draw: random.Random, ranks: int) -> list[tuple[int, int]]:
    """Draw the first ranks and the sizes of subgroups, which are not all of one size."""
    while True:
        blocks: list[tuple[int, int]] = []
        start = 0
        while start < ranks:
            fitting = [size for size in allowed_sizes(ranks)[:-1] if start % size == 0]
            blocks.append((start, draw.choice(fitting)))
            start = sum(blocks[-1])
        if len({size for _, size in blocks}) > 1:
            return blocks


def by_verl(
    loss: Callable[..., Any], micro_batches: Sequence[tuple[Sequence[int], Any]], tokens: int
) -> Callable[[Sequence[torch.Tensor]], torch.Tensor]:
    """Return what verl's engine trains with in one process: the loss of each micro-batch, added up.

    `loss`: the loss function, as the engine is given it. `micro_batches`: the places of its sequences in the
    batch, and each micro-batch. `tokens`: tokens of the whole batch that count.
    """

    def added_up(per_sequence: Sequence[torch.Tensor]) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for places, micro_batch in micro_batches:
            rows = [torch.nn.functional.pad(per_sequence[place], (0, 1)) for place in places]
            outputs = {"log_probs": cpu_engine.nested([row[0] for row in rows])}
            if tu.get_non_tensor_data(micro_batch, "calculate_entropy", default=False):
                outputs["entropy"] = cpu_engine.nested([row[1] for row in rows])
            exact = micro_batch.clone(recurse=False)
            for name in FLOATS:
                exact[name] = exact[name].double()
            tu.assign_non_tensor(exact, dp_size=1, batch_num_tokens=tokens)
            total = total + loss(model_output=outputs, data=exact, dp_group=None)[0]
        return total

    return added_up


@contextlib.contextmanager
def draws(given: Sequence[torch.Tensor] | None = None) -> Iterator[list[torch.Tensor]]:
    """Note what a loss draws, or give it what was drawn before.

    `given`: what to give it.
    """
    seen: list[torch.Tensor] = []
    queue = list(given or ())

    def noting(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def drawn(*arguments: Any, **settings: Any) -> torch.Tensor:
            seen.append(original(*arguments, **settings) if given is None else queue.pop(0))
            return seen[-1]

        return drawn

    with contextlib.ExitStack() as undo:
        for name in ("rand", "randperm"):
            undo.enter_context(replaced(torch, name, noting(getattr(torch, name))))
        yield seen
