"""The cases of the contract, run on every rank of a gloo job (see `overlay.compat.ranks.engine_main`)."""

import functools
import os
import random
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from megatron.core import parallel_state as mpu

from overlay.compat import cpu_engine
from overlay.compat.cpu_policy_step import run_ppo
from overlay.compat.cpu_steps import run_outputs, run_sft

Case = tuple[str, int, int, Callable[[], Any]]


def cases(world: int) -> list[Case]:
    """Return the cases for a world of this size, all of whose ranks are data parallel."""
    draw = random.Random(f"{os.environ['OVERLAY_TEST_SEED']}/{world}")
    return [(name, 1, 1, case) for name, case in flat_cases(draw, world)]


def flat_cases(draw: random.Random, world: int) -> list[tuple[str, Callable[[], Any]]]:
    """Return the same by name, with batches that are drawn and some that are not."""
    fresh = [draw_batch(draw, world) for _ in range(4)]
    mixed = mixed_batch(world)
    pairs: dict[str, Any] = {"lengths": [3, 7] * world, "cap": 4}
    return [
        *((f"fresh/{index}", functools.partial(run_sft, **case)) for index, case in enumerate(fresh)),
        ("pairs", functools.partial(run_sft, **pairs)),
        ("outputs, pairs", functools.partial(run_outputs, **pairs)),
        ("mixed", functools.partial(run_sft, **mixed)),
        ("per token loss", functools.partial(run_sft, **mixed, per_token_loss=True)),
        ("ppo token-mean", functools.partial(run_ppo, draw, "token-mean")),
        ("ppo entropy and KL", functools.partial(run_ppo, draw, "token-mean", entropy=0.3, kl=0.7)),
        ("outputs", functools.partial(run_outputs, **mixed)),
        ("outputs, dynamic micro-batches", functools.partial(run_outputs, **fresh[0])),
        ("roles", run_roles),
    ]


def mixed_batch(world: int) -> dict[str, Any]:
    """Return a batch with one sequence that takes all ranks, and many that take one."""
    return {
        "lengths": [4 * world, *[3] * (2 * world - 1)],
        "cap": 4,
        "micro_batch_size_per_gpu": world,
    }


def draw_batch(draw: random.Random, world: int) -> dict[str, Any]:
    """Draw a batch of any mix of lengths that the ranks can hold, cut into micro-batches in either way."""
    cap = draw.randint(2, 8)
    longest = world * cap
    count = draw.randint(1, 3 * world)
    lengths = [draw.choice([2, draw.randint(2, cap), draw.randint(2, longest)]) for _ in range(count)]
    if draw.random() < 0.5:
        sizes = [size for size in range(1, count + 1) if count % size == 0]
        return {"lengths": lengths, "cap": cap, "micro_batch_size_per_gpu": draw.choice(sizes)}
    return {
        "lengths": lengths,
        "cap": cap,
        "use_dynamic_bsz": True,
        "max_token_len_per_gpu": draw.randint(cap, 3 * cap),
    }


def run_roles(*, sequence_parallel: bool = False) -> dict[str, Any]:
    """Return whether this rank gives its outputs, and how many share what it collects."""
    engine = cpu_engine.build_engine(cap=4, sequence_parallel=sequence_parallel)
    return {
        "source": engine.is_mp_src_rank_with_outputs(),
        "group": dist.get_world_size(engine.get_data_parallel_group()),
        "first": mpu.get_data_parallel_rank() == 0
        and mpu.get_tensor_model_parallel_rank() == 0
        and mpu.is_pipeline_last_stage(),
        "sequence parallel": engine.module[0].module.decoder.layers[0].mlp.linear_fc1.sequence_parallel,
    }
