"""Cases of dynamic context parallelism, run on every rank of a gloo job (see `ranks.engine_main`).

Each returns figures, and asserts nothing: judging is up to `test_dynamic_cp`. Inputs are drawn afresh
from `OVERLAY_TEST_SEED`, which the test sets and reports; all ranks draw the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import os
import random
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state as mpu
from verl.utils import megatron_utils
from verl.utils import tensordict_utils as tu
from verl.workers.config import ActorConfig
from verl.workers.engine.megatron import transformer_impl
from verl.workers.utils.losses import ppo_loss, sft_loss

import overlay
from overlay.compat import cpu_engine, cpu_reference
from overlay.compat.cuda_on_cpu import replaced
from overlay.patches._dynamic_cp.plan import allowed_sizes
from overlay.patches.verl.dynamic_cp_loss import fix as dynamic_cp_loss

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
    fresh = [_draw(draw, world) for _ in range(4)]
    mixed: dict[str, Any] = {
        "lengths": [4 * world, *[3] * (2 * world - 1)],
        "cap": 4,
        "micro_batch_size_per_gpu": world,
    }
    named: list[tuple[str, Callable[[], Any]]] = [
        (f"fresh/{index}", functools.partial(run_sft, **case)) for index, case in enumerate(fresh)
    ]
    pairs: dict[str, Any] = {"lengths": [3, 7] * world, "cap": 4}
    named += [
        ("pairs", functools.partial(run_sft, **pairs)),
        ("outputs, pairs", functools.partial(run_outputs, **pairs)),
        ("mixed", functools.partial(run_sft, **mixed)),
        ("one sequence", functools.partial(run_sft, lengths=[3 * world], cap=4)),
        ("fewer sequences than ranks", functools.partial(run_sft, lengths=[3] * (world - 1), cap=4)),
        ("ranks with padding only", functools.partial(run_sft, lengths=[2], cap=2)),
        (
            "ranks without loss tokens",
            functools.partial(run_sft, lengths=[4] * world, cap=4, silent=world - 1),
        ),
        ("per token loss", functools.partial(run_sft, **mixed, per_token_loss=True)),
        ("per token loss, tokens told", functools.partial(_tokens_told, **mixed)),
        ("token budget", _token_budget),
        ("too long", _too_long),
        ("after too long", functools.partial(run_sft, **mixed)),
        ("ppo token-mean", functools.partial(run_ppo, draw, "token-mean")),
        ("ppo seq-mean-token-sum", functools.partial(run_ppo, draw, "seq-mean-token-sum")),
        ("ppo per token loss", functools.partial(run_ppo, draw, "token-mean", per_token_loss=True)),
        ("ppo entropy and KL", functools.partial(run_ppo, draw, "token-mean", entropy=0.3, kl=0.7)),
        (
            "ppo seq-mean-token-mean",
            functools.partial(run_ppo, draw, "seq-mean-token-mean", entropy=0.3, kl=0.7),
        ),
        ("outputs", functools.partial(run_outputs, **mixed)),
        ("outputs, dynamic micro-batches", functools.partial(run_outputs, **fresh[0])),
        ("roles", _roles),
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
        ("roles", functools.partial(_roles, **shared)),
        ("too long", functools.partial(_too_long, **shared)),
        ("after too long", functools.partial(run_sft, **mixed, **shared)),
    ]


def _draw(draw: random.Random, world: int) -> dict[str, Any]:
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


def _seed() -> int:
    return random.Random(os.environ["OVERLAY_TEST_SEED"]).randrange(2**31)


@contextlib.contextmanager
def watched() -> Iterator[list[dict[str, Any]]]:
    """Yield a list, in which the size and the load of this rank's part of each micro-batch are noted."""
    seen: list[dict[str, Any]] = []
    split = megatron_utils.dynamic_cp_split_batch

    def noted(*given: Any, **named: Any) -> Any:
        part = split(*given, **named)
        seen.append(
            {
                "size": tu.get_non_tensor_data(part, "local_cp_size", default=None),
                "tokens": int(part["input_ids"].values().numel()),
                "sequences": len(part),
            }
        )
        return part

    with replaced(megatron_utils, "dynamic_cp_split_batch", noted):
        yield seen


def run_sft(
    *,
    lengths: list[int],
    cap: int,
    per_token_loss: bool = False,
    sequence_parallel: bool = False,
    shape: cpu_engine.Shape | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Train one step of supervised fine-tuning, and compare it with one process."""
    engine = cpu_engine.build_engine(
        cap=cap,
        seed=_seed(),
        per_token_loss=per_token_loss,
        sequence_parallel=sequence_parallel,
        shape=shape,
    )
    batch = cpu_engine.random_batch(lengths, seed=_seed() + 1, **settings)
    loss, reference = cpu_reference.loss_and_gradient(
        cpu_engine.weights_of(engine),
        batch["input_ids"].unbind(),
        cpu_reference.token_mean_loss(batch["loss_mask"].unbind()),
        heads=cpu_engine.HEADS,
        rope=shape is not None and shape.rope,
    )
    with watched() as seen:
        output = cpu_engine.train(engine, batch, functools.partial(sft_loss, None))
    return _judged(engine, output, reference, loss, seen, case={"lengths": lengths, "cap": cap, **settings})


def _judged(
    engine: Any,
    output: dict[str, Any],
    reference: dict[str, torch.Tensor],
    loss: float,
    seen: list[dict[str, Any]],
    **more: Any,
) -> dict[str, Any]:
    gradients = cpu_engine.gradients_of(engine)
    ratio, error = cpu_engine.compare(gradients, reference)
    source = engine.is_mp_src_rank_with_outputs()
    metrics = cpu_engine.reported_metrics(engine, output) if source else {}
    return {
        "ratio": ratio,
        "error": error,
        "worst": worst(gradients, reference),
        "turned": _turned(gradients, reference),
        "seen": seen,
        "source": source,
        "loss": loss,
        "loss everywhere": sum(output["loss"]) if output else None,
        "reported": metrics.get("loss"),
        "model outputs": sorted(output.get("model_output", {})),
        **more,
    }


def worst(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> float:
    """Return the largest relative error of any one parameter, of those that have any size."""
    whole = max(float(value.norm()) for value in want.values())
    return max(
        float((got[name].double() - value).norm() / value.norm())
        for name, value in want.items()
        if value.norm() > 1e-6 * whole
    )


def _turned(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> float:
    """Return how far the directions are apart, whatever the sizes: |g/|g| - g_ref/|g_ref||."""
    one = torch.cat([got[name].double().flatten() for name in want])
    other = torch.cat([value.double().flatten() for value in want.values()])
    return float((one / one.norm() - other / other.norm()).norm())


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


def run_ppo(
    draw: random.Random,
    mode: str,
    *,
    per_token_loss: bool = False,
    entropy: float = 0.0,
    kl: float = 0.0,
    shape: cpu_engine.Shape | None = None,
) -> dict[str, Any]:
    """Train one step of a policy on a drawn batch, and compare it with one process."""
    rope = shape is not None and shape.rope
    world = dist.get_world_size()
    prompts = [draw.randint(1, 4) for _ in range(2 * world)]
    responses = [draw.randint(1, 4) for _ in prompts]
    responses[0] = 3 * world
    engine = cpu_engine.build_engine(cap=5, seed=_seed(), per_token_loss=per_token_loss, shape=shape)
    lengths = [prompt + response for prompt, response in zip(prompts, responses, strict=True)]
    batch = cpu_engine.random_batch(lengths, seed=_seed() + 2, micro_batch_size_per_gpu=world)
    weights = cpu_engine.weights_of(engine)
    tokens = batch["input_ids"].unbind()

    noise = torch.Generator().manual_seed(_seed() + 3)

    def per_response(make: Callable[[int], torch.Tensor]) -> Any:
        return cpu_engine.nested([make(length) for length in responses])

    now = [
        cpu_reference.log_probs(weights, row, heads=cpu_engine.HEADS, rope=rope).detach() for row in tokens
    ]
    masks = [torch.randint(0, 2, (length,), generator=noise) for length in responses]
    for mask in masks:
        mask[:2] = 1
    batch["prompts"] = cpu_engine.nested([row[:size] for row, size in zip(tokens, prompts, strict=True)])
    batch["responses"] = cpu_engine.nested([row[size:] for row, size in zip(tokens, prompts, strict=True)])
    batch["response_mask"] = batch["loss_mask"] = cpu_engine.nested(masks)
    gains = [torch.randn(length, generator=noise) for length in responses]
    # Far enough from the policy that some tokens are clipped, on both sides: whatever is drawn, the first
    # token of the first sequence is, and its second is not.
    shifts = [0.4 * torch.randn(length, generator=noise) for length in responses]
    gains[0][0], shifts[0][0], shifts[0][1] = 1.0, -1.0, 0.0
    batch["advantages"] = cpu_engine.nested(gains)
    before = [row[-len(shift) :].float() + shift for row, shift in zip(now, shifts, strict=True)]
    batch["old_log_probs"] = cpu_engine.nested(before)
    batch["ref_log_prob"] = per_response(lambda length: -2 + torch.randn(length, generator=noise))
    if entropy:
        tu.assign_non_tensor(batch, calculate_entropy=True)
    config = ActorConfig(
        strategy="megatron",
        rollout_n=1,
        loss_agg_mode=mode,
        ppo_micro_batch_size_per_gpu=1,
        entropy_coeff=entropy,
        use_kl_loss=bool(kl),
        kl_loss_coef=kl,
        kl_loss_type="mse",
    )
    advantages, old = batch["advantages"].unbind(), batch["old_log_probs"].unbind()
    anchors = batch["ref_log_prob"].unbind()

    def token_terms(per_sequence: Any) -> list[torch.Tensor]:
        terms = []
        for both, advantage, before, anchor, mask in zip(
            per_sequence, advantages, old, anchors, masks, strict=True
        ):
            row, spread = both[:, -len(mask) :]
            change = (row - before.double()).exp()
            clipped = change.clamp(1 - config.clip_ratio_low, 1 + config.clip_ratio_high)
            worst = torch.maximum(-advantage * change, -advantage * clipped)
            bounded = torch.where(
                advantage < 0, torch.minimum(worst, -advantage * config.clip_ratio_c), worst
            )
            terms.append((bounded - entropy * spread + kl * 0.5 * (row - anchor).square()) * mask)
        return terms

    # The terms of a policy loss cancel: its rounding error is relative to their size, not to their sum.
    sizes: list[float] = []

    def loss(per_sequence: Any) -> torch.Tensor:
        terms = token_terms(per_sequence)
        if mode == "seq-mean-token-mean":
            terms = [term / mask.sum() for term, mask in zip(terms, masks, strict=True)]
        divisor = sum(int(mask.sum()) for mask in masks) if mode == "token-mean" else len(masks)
        sizes.append(torch.cat(terms).detach().abs().sum().item() / divisor)
        return torch.cat(terms).sum() / divisor

    value, reference = cpu_reference.loss_and_gradient(
        weights,
        tokens,
        loss,
        heads=cpu_engine.HEADS,
        rope=rope,
        outputs=cpu_reference.log_probs_and_entropy,
    )
    with watched() as seen:
        output = cpu_engine.train(engine, batch, functools.partial(ppo_loss, config))
    metrics = output["metrics"]
    return _judged(
        engine,
        output,
        reference,
        value,
        seen,
        size=sizes[0],
        pg_loss=metrics["actor/pg_loss"].aggregate()
        - entropy * (metrics["actor/entropy_loss"].aggregate() if entropy else 0.0)
        + kl * (metrics["kl_loss"].aggregate() if kl else 0.0),
        clipped=metrics["actor/pg_clipfrac"].aggregate(),
        values=len(metrics["actor/ppo_kl"].values),
    )


def run_outputs(
    *,
    lengths: list[int],
    cap: int,
    sequence_parallel: bool = False,
    shape: cpu_engine.Shape | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Compare the outputs of a forward pass with those of one process, sequence by sequence."""
    rope = shape is not None and shape.rope
    engine = cpu_engine.build_engine(cap=cap, seed=_seed(), sequence_parallel=sequence_parallel, shape=shape)
    batch = cpu_engine.random_batch(lengths, seed=_seed() + 4, calculate_sum_pi_squared=True, **settings)
    weights = {name: value.double() for name, value in cpu_engine.weights_of(engine).items()}
    tokens = batch["input_ids"].unbind()
    want = [cpu_reference.log_probs(weights, row, heads=cpu_engine.HEADS, rope=rope) for row in tokens]
    loss = cpu_reference.token_mean_loss(batch["loss_mask"].unbind())(want)
    found: dict[str, Any] = {"loss": loss.item()}
    for name, function in (("without loss", None), ("with loss", functools.partial(sft_loss, None))):
        output = cpu_engine.infer(engine, batch.clone(), function)
        if not output:  # not the last pipeline stage
            continue
        rows = output["model_output"]["log_probs"].unbind()
        squares = output["model_output"].get("sum_pi_squared")  # since 27 April 2026
        errors = [
            ((row[:-1].double() - right).abs().max() / right.abs().max()).item()
            for row, right in zip(rows, want, strict=True)
        ]
        found[name] = {
            "error": max(errors),
            "lengths": [len(row) for row in rows],
            "dtype": str(rows[0].dtype),
            "names": sorted(output["model_output"]),
            "squares": [] if squares is None else [float(row.sum()) for row in squares.unbind()],
            "losses": output["loss"],
        }
    found["lengths"] = lengths
    return found


def _roles(*, sequence_parallel: bool = False) -> dict[str, Any]:
    engine = cpu_engine.build_engine(cap=4, sequence_parallel=sequence_parallel)
    return {
        "source": engine.is_mp_src_rank_with_outputs(),
        "group": dist.get_world_size(engine.get_data_parallel_group()),
        "first": mpu.get_data_parallel_rank() == 0
        and mpu.get_tensor_model_parallel_rank() == 0
        and mpu.is_pipeline_last_stage(),
        "sequence parallel": engine.module[0].module.decoder.layers[0].mlp.linear_fc1.sequence_parallel,
    }


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
    batch = cpu_engine.random_batch(lengths, seed=_seed(), **settings)
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
        ("make_is_source", engine, "is_mp_src_rank_with_outputs"),
        ("make_group", engine, "get_data_parallel_group"),
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
            engine = cpu_engine.build_engine(cap=None, dynamic=False, seed=_seed())
            # Data parallelism as usual: each rank has sequences of its own.
            batch = cpu_engine.random_batch([4, 6, 3, 5], seed=_seed() + rank, micro_batch_size_per_gpu=2)
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
    engine = cpu_engine.build_engine(cap=4, seed=_seed())
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
