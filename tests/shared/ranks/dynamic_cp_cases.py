"""Cases of dynamic context parallelism, run on every rank of a gloo job (see `ranks.engine_main`).

Each returns figures, and asserts nothing: judging is up to `test_dynamic_cp`. Inputs are drawn afresh
from `OVERLAY_TEST_SEED`, which the test sets and reports; all ranks draw the same.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import random
from typing import TYPE_CHECKING, Any

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
from overlay.patches._dynamic_cp.plan import allowed_sizes
from overlay.patches.verl.dynamic_cp_loss import fix as dynamic_cp_loss
from overlay.patches.verl.dynamic_cp_loss.contract.cases import flat_cases, mixed_batch, run_roles

if TYPE_CHECKING:
    from collections.abc import Callable

Case = tuple[str, int, int, "Callable[[], Any]"]


def cases(world: int) -> list[Case]:
    """Return the cases for a world of this size, by layout."""
    flat: list[Case] = [(name, 1, 1, case) for name, case in _flat_cases(world)]
    if world == 4:
        flat += [(name, 1, 1, functools.partial(run_sft, **case)) for name, case in TABLE.items()]
        flat += [(f"pipeline/{name}", 1, 2, case) for name, case in _model_parallel_cases()]
    if world in (6, 8):
        flat += [(f"tensor/{name}", 2, 1, case) for name, case in _model_parallel_cases()]
    if world in (4, 6):
        shared = _model_parallel_cases(sequence_parallel=True)
        flat += [(f"sequence/{name}", 2, 1, case) for name, case in shared]
    return flat


#: The cases that were measured upstream, on 4 ranks.
_C2, _C1 = [5, 9, 4, 7, 3, 6, 8, 4], [5, 3, 4, 2, 3, 6, 6, 4]
TABLE: dict[str, dict[str, Any]] = {
    "table/C 2": {"lengths": _C2, "cap": 6},
    "table/C 1": {"lengths": _C1, "cap": 6},
    "table/C 2 and 1": {"lengths": _C2 + _C1, "cap": 6, "micro_batch_size_per_gpu": 8},
    "table/few": {"lengths": [20, 3], "cap": 6},
    "table/uneven": {"lengths": [5, 4, 3, 4, 2], "cap": 6},
}


def _flat_cases(world: int) -> list[tuple[str, Callable[[], Any]]]:
    draw = random.Random(f"{os.environ['OVERLAY_TEST_SEED']}/{world}")
    mixed = mixed_batch(world)
    named: list[tuple[str, Callable[[], Any]]] = [
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
        ("groups", _groups),
        ("collectives in training", functools.partial(_collectives, **mixed)),
        ("signatures", _signatures),
        ("start", _start),
        ("refusals", _refusals),
        ("off, passed through", _passed_through),
    ]
    if world in (2, 6):  # a power of two, and none; putting the patches in anew takes long
        named.append(("off, untouched", _untouched))
    if world == 2:
        named.append(("ranks that differ", _differing))
    return named


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


def _groups() -> dict[str, Any]:
    """Ask the stand-in for a group of every size, and return who is in it, or what asking raises."""
    found: dict[str, Any] = {"sizes": {}, "agree": True}
    ranks = dist.get_world_size()
    for size in range(1, 2 * ranks + 1):
        try:
            group = mpu.get_dynamic_data_context_parallel_groups(group_size=size)
        except KeyError:
            continue
        found["sizes"][size] = dist.get_process_group_ranks(group)
    for count in range(1, 100):
        same = cpu_engine.group_sizes(count) == list(allowed_sizes(count))
        found["agree"] = found["agree"] and same
    return found


def _collectives(*, lengths: list[int], cap: int, **settings: Any) -> dict[str, Any]:
    """Count, by name, the collectives of the data parallel group that a training batch starts in verl."""
    counted: dict[str, int] = {}
    group = mpu.get_data_parallel_group()

    def counting(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        def count(*args: Any, **kwargs: Any) -> Any:
            caller = inspect.currentframe()
            assert caller is not None
            assert caller.f_back is not None
            module = caller.f_back.f_globals.get("__name__", "")
            if (
                signature.bind(*args, **kwargs).arguments.get("group") is group
                and "megatron.core" not in module
            ):
                counted[name] = counted.get(name, 0) + 1
            return original(*args, **kwargs)

        return count

    engine = cpu_engine.build_engine(cap=cap)
    batch = cpu_engine.random_batch(lengths, seed=seed(), **settings)
    names = ("all_reduce", "all_gather", "all_gather_object", "all_gather_into_tensor", "broadcast")
    before = {name: getattr(dist, name) for name in names}
    try:
        for name, original in before.items():
            setattr(dist, name, counting(name, original))
        output = cpu_engine.train(engine, batch, functools.partial(sft_loss, None))
    finally:
        for name, original in before.items():
            setattr(dist, name, original)
    return {"counted": counted, "model outputs": sorted(output["model_output"])}


def _sites() -> list[tuple[str, Any, str]]:
    """Return the name of each replaced function, what holds it, and its name there."""
    engine, head = transformer_impl.MegatronEngine, transformer_impl.MegatronEngineWithLMHead
    return [
        ("make_prepare", transformer_impl, "prepare_micro_batches"),
        ("make_forward_backward", engine, "forward_backward_batch"),
        ("make_postprocess", head, "postprocess_micro_batch_func"),
        ("is_source", engine, "is_mp_src_rank_with_outputs"),
        ("get_data_parallel_group", engine, "get_data_parallel_group"),
    ]


def _start() -> dict[str, Any]:
    """Ask Megatron for dynamic groups of this world, as verl's engine does."""
    mpu.destroy_model_parallel()
    try:
        mpu.initialize_model_parallel(create_gloo_process_groups=False, dynamic_context_parallel=True)
        refused = ["nothing", ""]
    except ValueError as error:
        refused = [type(error).__name__, str(error)]
        mpu.initialize_model_parallel(create_gloo_process_groups=False)
    return {"refused": refused}


def _signatures() -> dict[str, Any]:
    """Compare the parameters of each replacement with those of what it replaces."""
    return {
        name: str(inspect.signature(getattr(holder, name)))
        == str(inspect.signature(getattr(holder, name).__overlay_original__))
        for _, holder, name in _sites()
    }


def _passed_through() -> dict[str, Any]:
    """With dynamic context parallelism off, each wrapper returns the very object that the original does."""
    engine = cpu_engine.build_engine(cap=4, dynamic=False)
    found = {}
    for factory, holder, name in _sites():
        result = object()
        calls: list[Any] = []
        parameters = inspect.signature(getattr(holder, name)).parameters

        def original(*args: Any, _result: object = result, _calls: list[Any] = calls) -> object:
            _calls.append(args)
            return _result

        wrapper = getattr(dynamic_cp_loss, factory)(original, transformer_impl)
        given = [
            engine if parameter == "self" else None if parameter == "local_cp_size" else object()
            for parameter in parameters
        ]
        passed = wrapper(*given) is result
        found[name] = passed and len(calls) == 1 and all(a is b for a, b in zip(calls[0], given, strict=True))
    return found


def _untouched() -> dict[str, Any]:
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


def _differing() -> dict[str, Any]:
    """Ask for the weights where the last rank has another bias than the others."""
    engine = cpu_engine.build_engine(cap=4, seed=seed())
    parameters = dict(engine.module[0].module.named_parameters())
    name = next(name for name in parameters if name.endswith(".bias"))
    with torch.no_grad():
        parameters[name].add_(mpu.get_data_parallel_rank())
    return {"weights": sorted(cpu_engine.weights_of(engine))}


def _refusals() -> dict[str, Any]:
    """Return, by setting, the error that each one raises, and the number of collectives before it."""
    told: dict[str, tuple[dict[str, Any], dict[str, Any], Callable[[Any], None]]] = {
        "fused, engine": ({"use_fused_kernels": True}, {}, lambda engine: None),
        "fused, batch": ({}, {"use_fused_kernels": True}, lambda engine: None),
        "padded": ({"use_remove_padding": False}, {}, lambda engine: None),
        "static": ({"context_parallel_size": 2}, {}, lambda engine: None),
        "no cap": ({}, {}, lambda engine: _set(engine, max_seqlen_per_dp_cp_rank=None)),
        "cap 0": ({}, {}, lambda engine: _set(engine, max_seqlen_per_dp_cp_rank=0)),
        "value model": ({}, {}, lambda engine: vars(engine).update(is_value_model=True)),
        "value head": (
            {"engine_class": transformer_impl.MegatronEngineWithValueHead},
            {},
            lambda engine: None,
        ),
        "mtp": ({}, {}, lambda engine: vars(engine.model_config.mtp).update(enable=True)),
        "replay": (
            {},
            {},
            lambda engine: object.__setattr__(engine.engine_config.router_replay, "mode", "R2"),
        ),
        "distillation": ({}, {"distillation_use_topk": True}, lambda engine: None),
        "mtp, model": ({}, {}, lambda engine: vars(engine.tf_config).update(mtp_num_layers=1)),
        "mla": ({}, {}, lambda engine: vars(engine.tf_config).update(multi_latent_attention=True)),
        "linear": (
            {},
            {},
            lambda engine: vars(engine.tf_config).update(experimental_attention_variant="gated_delta_net"),
        ),
        "vision": ({}, {}, lambda engine: vars(engine.model_config.hf_config).update(vision_config={})),
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
