"""Cases of dynamic context parallelism, run on every rank of a gloo job (see `ranks.engine_main`).

Each returns figures, and asserts nothing: judging is up to `test_dynamic_cp`. Inputs are drawn afresh
from `OVERLAY_TEST_SEED`, which the test sets and reports; all ranks draw the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import random
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state as mpu
from verl.workers.engine.megatron import transformer_impl
from verl.workers.utils.losses import sft_loss

import overlay
from overlay.compat import cpu_engine, cpu_reference
from overlay.compat.cpu_policy_step import run_ppo
from overlay.compat.cpu_steps import run_outputs, run_sft, seed
from overlay.compat.cuda_on_cpu import replaced
from overlay.patches.verl.dynamic_cp_loss import fix as dynamic_cp_loss
from overlay.patches.verl.dynamic_cp_loss.contract.cases import flat_cases, mixed_batch, run_roles

Case = tuple[str, int, int, "Callable[[], Any]"]


#: Tensor and pipeline parallel sizes, and whether sequences are parallel too.
LAYOUTS = {"pipeline": (1, 2, False), "tensor": (2, 1, False), "sequence": (2, 1, True)}


def cases(world: int) -> list[Case]:
    """Return the cases for a world of this size, by layout."""
    found: list[Case] = [(name, 1, 1, case) for name, case in _flat_cases(world)]
    for kind, (tensor, pipeline, shared) in LAYOUTS.items() if world > 2 else ():
        found += [
            (f"{kind}/{name}", tensor, pipeline, case)
            for name, case in _model_parallel_cases(sequence_parallel=shared)
        ]
    return found


def _flat_cases(world: int) -> list[tuple[str, Callable[[], Any]]]:
    draw = random.Random(f"{os.environ['OVERLAY_TEST_SEED']}/{world}")
    mixed = mixed_batch(world)
    return [
        *flat_cases(draw, world),
        ("one sequence", functools.partial(run_sft, lengths=[3 * world], cap=4)),
        ("fewer sequences than ranks", functools.partial(run_sft, lengths=[3] * (world - 1), cap=4)),
        ("ranks with padding only", functools.partial(run_sft, lengths=[2], cap=2)),
        (
            "ranks without loss tokens",
            functools.partial(run_sft, lengths=[4] * world, cap=4, silent=world - 1),
        ),
        ("per token loss, tokens told", functools.partial(_tokens_told, **mixed)),
        ("token budget", _token_budget),
        ("too long", _too_long),
        ("after too long", functools.partial(run_sft, **mixed)),
        ("ppo seq-mean-token-sum", functools.partial(run_ppo, draw, "seq-mean-token-sum")),
        ("ppo per token loss", functools.partial(run_ppo, draw, "token-mean", per_token_loss=True)),
        (
            "ppo seq-mean-token-mean",
            functools.partial(run_ppo, draw, "seq-mean-token-mean", entropy=0.3, kl=0.7),
        ),
        ("collectives in training", functools.partial(_collectives, **mixed)),
        ("refusals", _refusals),
        ("off", _off),
    ]


def _model_parallel_cases(*, sequence_parallel: bool = False) -> list[tuple[str, Callable[[], Any]]]:
    mixed: dict[str, Any] = {"lengths": [9, 3, 3, 3, 5, 2, 4, 3], "cap": 5, "micro_batch_size_per_gpu": 4}
    shared: dict[str, Any] = {"sequence_parallel": sequence_parallel}
    return [
        ("mixed", functools.partial(run_sft, **mixed, **shared)),
        ("outputs", functools.partial(run_outputs, **mixed, **shared)),
        ("roles", functools.partial(run_roles, **shared)),
        ("too long", functools.partial(_too_long, **shared)),
        ("after too long", functools.partial(run_sft, **mixed, **shared)),
    ]


def _tokens_told(*, lengths: list[int], **case: Any) -> dict[str, Any]:
    """Train on an engine that tells Megatron the tokens of a micro-batch, by which it divides.

    As verl's did from July 2026 on: a loss times all tokens of the batch, and each rank of a subgroup counts
    all tokens of the subgroup.
    """
    head = transformer_impl.MegatronEngineWithLMHead
    given = getattr(head.postprocess_micro_batch_func, "__overlay_original__")  # noqa: B009 -- no attribute of a type

    def told(engine: Any, output: Any, data: Any, *rest: Any) -> Any:
        scaled, report = given(engine, output, data, *rest)
        loss = scaled / data["num_micro_batch"]
        tokens = data["input_ids"].offsets()[-1].to(torch.int)
        return loss * sum(lengths) / data["dp_size"], tokens, report

    patched = dynamic_cp_loss.make_postprocess(told, transformer_impl)
    with replaced(head, "postprocess_micro_batch_func", patched):
        return run_sft(lengths=lengths, **case, per_token_loss=True)


def _token_budget() -> dict[str, Any]:
    """Run with a budget that leaves no room: a rank of its own for each sequence would break it."""
    lengths = [8] * (3 * dist.get_world_size())
    return run_sft(lengths=lengths, cap=8, use_dynamic_bsz=True, max_token_len_per_gpu=12)


def _too_long(*, sequence_parallel: bool = False) -> dict[str, Any]:
    ranks = mpu.get_data_parallel_world_size()
    lengths = [3, 4 * ranks + 1, 2]
    return run_sft(lengths=lengths, cap=4, sequence_parallel=sequence_parallel, micro_batch_size_per_gpu=1)


def _collectives(*, lengths: list[int], cap: int, **settings: Any) -> dict[str, Any]:
    """Count, by name, the collectives of the data parallel group that a training batch starts in verl."""
    counted: dict[str, int] = {}
    group = mpu.get_data_parallel_group()

    def counting(name: str) -> Callable[..., Any]:
        original = getattr(dist, name)

        def count(*args: Any, **kwargs: Any) -> Any:
            of_megatron = "megatron.core" in sys._getframe(1).f_globals.get("__name__", "")
            if not of_megatron and any(one is group for one in (*args, *kwargs.values())):
                counted[name] = counted.get(name, 0) + 1
            return original(*args, **kwargs)

        return count

    engine = cpu_engine.build_engine(cap=cap)
    batch = cpu_engine.random_batch(lengths, seed=seed(), **settings)
    with contextlib.ExitStack() as watching:
        for name in ("all_reduce", "all_gather", "all_gather_object", "all_gather_into_tensor", "broadcast"):
            watching.enter_context(replaced(dist, name, counting(name)))
        output = cpu_engine.train(engine, batch, functools.partial(sft_loss, None))
    return {"counted": counted, "model outputs": sorted(output["model_output"])}


def _off() -> dict[str, Any]:
    """Train with dynamic context parallelism off, with overlay and without: bit for bit the same."""
    world = mpu.get_data_parallel_world_size()
    rank = mpu.get_data_parallel_rank()
    runs = []
    for enabled in (True, False):
        if not enabled:
            overlay.disable()
        try:
            engine = cpu_engine.build_engine(cap=None, dynamic=False, seed=seed())
            # Data parallelism as usual: each rank has sequences of its own.
            batch = cpu_engine.random_batch([4, 6, 3, 5], seed=seed() + rank, micro_batch_size_per_gpu=2)
            output = cpu_engine.train(engine, batch, functools.partial(sft_loss, None))
            forward = cpu_engine.infer(engine, batch)["model_output"]["log_probs"]
            runs.append((output["loss"], cpu_engine.gradients_of(engine), forward, batch))
        finally:
            if not enabled:
                overlay.enable()
    (losses, gradients, outputs, batch), (plain_losses, plain_gradients, plain_outputs, _) = runs
    every: list[Any] = [None] * world
    dist.all_gather_object(
        every, [[row.tolist() for row in batch[key].unbind()] for key in ("input_ids", "loss_mask")]
    )
    tokens = [torch.tensor(row) for part in every for row in part[0]]
    masks = [torch.tensor(row) for part in every for row in part[1]]
    _, reference = cpu_reference.loss_and_gradient(
        cpu_engine.weights_of(engine), tokens, cpu_reference.token_mean_loss(masks), heads=cpu_engine.HEADS
    )
    return {
        "losses": losses == plain_losses,
        "gradients": all(torch.equal(gradients[name], plain_gradients[name]) for name in plain_gradients),
        "outputs": torch.equal(outputs.values(), plain_outputs.values()),
        "error": cpu_engine.compare(gradients, reference)[1],
    }


def _refusals() -> dict[str, Any]:
    """Return, by setting, the error that each one raises, and the number of collectives before it."""

    def fields(where: Callable[[Any], Any], **changed: Any) -> Callable[[Any], None]:
        return lambda engine: vars(where(engine)).update(changed)

    def itself(engine: Any) -> Any:
        return engine

    def own(engine: Any) -> Any:
        return engine.tf_config

    def replay(engine: Any) -> None:
        object.__setattr__(engine.engine_config.router_replay, "mode", "R2")

    # Settings of the engine, of the batch, and what is changed of the engine that was made.
    told: dict[str, tuple[dict[str, Any], dict[str, Any], Callable[[Any], object]]] = {
        "fused, engine": ({"use_fused_kernels": True}, {}, id),
        "fused, batch": ({}, {"use_fused_kernels": True}, id),
        "padded": ({"use_remove_padding": False}, {}, id),
        "static": ({"context_parallel_size": 2}, {}, id),
        "no cap": ({}, {}, lambda engine: _set(engine, max_seqlen_per_dp_cp_rank=None)),
        "cap 0": ({}, {}, lambda engine: _set(engine, max_seqlen_per_dp_cp_rank=0)),
        "value model": ({}, {}, fields(itself, is_value_model=True)),
        "value head": ({"engine_class": transformer_impl.MegatronEngineWithValueHead}, {}, id),
        "mtp": ({}, {}, fields(lambda engine: engine.model_config.mtp, enable=True)),
        "replay": ({}, {}, replay),
        "distillation": ({}, {"distillation_use_topk": True}, id),
        "mtp, model": ({}, {}, fields(own, mtp_num_layers=1)),
        "mla": ({}, {}, fields(own, multi_latent_attention=True)),
        "balanced": ({}, {}, fields(own, num_moe_experts=4, moe_aux_loss_coeff=0.1)),
        "linear": ({}, {}, fields(own, experimental_attention_variant="gated_delta_net")),
        "vision": ({}, {}, fields(lambda engine: engine.model_config.hf_config, vision_config={})),
    }
    found = {}
    for name, (settings, data, change) in told.items():
        engine = cpu_engine.build_engine(cap=4, **settings)
        change(engine)
        batch = cpu_engine.random_batch([3, 4], seed=1, **data)
        try:
            cpu_engine.train(engine, batch, functools.partial(sft_loss, None))
        except (NotImplementedError, ValueError) as error:
            found[name] = [type(error).__name__, str(error)]
        else:
            found[name] = ["nothing", ""]
    return found


def _set(engine: Any, **fields: Any) -> None:
    engine.engine_config = dataclasses.replace(engine.engine_config, **fields)
