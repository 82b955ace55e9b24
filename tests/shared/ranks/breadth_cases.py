"""What goes beyond a dense model in float32 under dynamic context parallelism (see `ranks.engine_main`).

Experts, interleaved stages, Megatron's distributed optimizer, bfloat16, adapters on frozen weights, and
micro-batches by number. Each case returns figures; judging is up to `test_dynamic_cp_breadth`.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from planned import planned
from verl.utils.megatron_utils import register_megatron_training_hooks
from verl.workers.utils.losses import sft_loss

from overlay.compat import cpu_engine, cpu_reference
from overlay.compat.cpu_steps import judged, run_outputs, run_sft, seed, worst
from overlay.compat.cuda_on_cpu import replaced
from overlay.patches._dynamic_cp.plan import Plan
from overlay.patches.verl.dynamic_cp_loss import fix as dynamic_cp_loss

Layout = tuple[int, int, int, int | None]
Case = tuple[str, Layout, Callable[[], Any]]

CAP = 7
#: Grouped queries and rotary positions in all of them.
PLAIN: dict[str, Any] = {"groups": 2, "rope": True, "norm": "RMSNorm"}
EXPERTS = cpu_engine.Shape(**PLAIN, experts=4)
#: At least so far the last expert that a token has is from the next one: rounding shall not choose.
GAP = 1e-5
STEPS, RATE, EPSILON, CLIP = 3, 0.05, 1e-3, 0.05
#: Small enough that there are several.
BUCKET = 1000
RANK = 3
SFT = functools.partial(sft_loss, None)


def cases(world: int) -> list[tuple[Any, ...]]:
    """Return the cases for a world of this size, as `overlay.compat.ranks.engine_main` wants them."""
    return [(name, *layout, case) for name, layout, case in _cases(world)]


def _cases(world: int) -> list[Case]:
    """Return the cases by layout: tensor, pipeline, expert, virtual stages."""
    draw = random.Random(f"{os.environ['OVERLAY_TEST_SEED']}/breadth/{world}")
    flat: Layout = (1, 1, 1, None)
    experts: Layout = (1, 1, 2, None)
    two = batch_of(draw, world, 2, micro_batches=2)
    found: list[Case] = [
        ("experts, uniform", experts, functools.partial(_experts, run_sft, **batch_of(draw, world, 2))),
        ("experts, mixed", experts, _mixed(_experts, run_sft, **two)),
    ]
    if world == 8:
        return found
    plain = cpu_engine.Shape(**PLAIN)
    short = cpu_engine.Shape(**PLAIN, dtype=torch.bfloat16)
    one: dict[str, Any] = {
        "lengths": [draw.randint(3, 3 * CAP) for _ in range(5)],
        "cap": CAP,
        "micro_batch_size_per_gpu": 1,
    }
    return [
        *found,
        ("experts, alone", experts, functools.partial(_experts, run_sft, **batch_of(draw, world, 1))),
        ("experts, outputs", experts, _mixed(_experts, run_outputs, **two)),
        ("experts, z-loss", experts, functools.partial(_z_loss, draw)),
        ("steps, experts", experts, _mixed(steps, draw, world, EXPERTS)),
        ("steps, dense", flat, _mixed(steps, draw, world, plain)),
        ("steps, adapters", flat, _mixed(steps, draw, world, plain, low=True)),
        ("adapters", flat, _mixed(_low_rank, **two)),
        ("bfloat16", flat, _mixed(_short, short, **two)),
        ("by number", flat, functools.partial(run_sft, **one, shape=plain)),
        *_interleaved(draw),
    ]


def _interleaved(draw: random.Random) -> list[Case]:
    """Return the cases of two ranks with two stages each, of which two are data parallel."""
    layout: Layout = (1, 2, 1, 2)
    shape = cpu_engine.Shape(**PLAIN, layers=4)
    short, long = (batch_of(draw, 2, size, micro_batches=2) for size in (1, 2))
    both = {**short, "lengths": short["lengths"] + long["lengths"]}
    return [
        ("interleaved, sft", layout, functools.partial(run_sft, **both, shape=shape)),
        ("interleaved, outputs", layout, functools.partial(run_outputs, **both, shape=shape)),
    ]


def batch_of(draw: random.Random, world: int, size: int, *, micro_batches: int = 1) -> dict[str, Any]:
    """Draw micro-batches for which C is `size`, each with as many sequences for a rank alone as ranks."""
    lengths: list[int] = []
    for _ in range(micro_batches):
        part = [size * CAP - draw.choice([0, 0, 1, 2])]
        part += [draw.randint(3, size * CAP) for _ in range(world)]
        part += [draw.randint(3, CAP) for _ in range(world)]
        draw.shuffle(part)
        lengths += part
    return {"lengths": lengths, "cap": CAP, "micro_batch_size_per_gpu": len(lengths) // micro_batches}


def halves(lengths: Sequence[int], ranks: int, cap: int) -> Plan:
    """Give what one rank cannot hold, and one more, to a half, and the others to a rank each."""
    half = ranks // 2
    large = [i for i, length in enumerate(lengths) if length > cap]
    one, *small = (i for i, length in enumerate(lengths) if length <= cap)
    large.append(one)
    alone = tuple((half + rank, 1, tuple(small[rank::half])) for rank in range(half))
    return ((0, half, tuple(sorted(large))), *alone)


#: Makes a case with two sizes of subgroups in each micro-batch.
_mixed = functools.partial(planned, halves)

# --- experts ---


def _experts(run: Callable[..., Any], **batch: Any) -> dict[str, Any]:
    """Run a model with experts on tokens for which it is clear which of them are best."""
    weights = cpu_engine.weights_of(cpu_engine.build_engine(cap=CAP, seed=seed(), shape=EXPERTS))
    with _clear(lambda: weights):
        found: dict[str, Any] = run(**batch, shape=EXPERTS)
    return found


@contextlib.contextmanager
def _clear(weights: Callable[[], dict[str, torch.Tensor]]) -> Iterator[None]:
    """Have batches drawn again until no token lies between two experts, for as long as this lasts."""
    drawn = cpu_engine.random_batch

    def clear(lengths: Any, *, seed: int, **settings: Any) -> Any:
        while True:
            batch = drawn(lengths, seed=seed, **settings)
            if _gap(weights(), batch["input_ids"].unbind()) > GAP:
                return batch
            seed += 1000

    with replaced(cpu_engine, "random_batch", clear):
        yield


def _gap(weights: dict[str, torch.Tensor], sequences: Any) -> float:
    """Return by how much the last chosen expert of any token is better than the next."""
    exact = {name: value.detach().double() for name, value in weights.items()}
    gaps = []
    for tokens in sequences:
        logits = _router_logits(exact, tokens)
        best = logits.topk(cpu_reference.CHOSEN + 1, dim=-1).values
        gaps.append(float((best[..., -2] - best[..., -1]).min()))
    return min(gaps)


def _router_logits(weights: dict[str, torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
    """Return [layers, length, experts]: what the experts of each token are chosen by."""
    logits: list[torch.Tensor] = []
    cpu_reference.all_log_probs(weights, tokens, heads=cpu_engine.HEADS, rope=True, logits=logits)
    return torch.stack(logits)


def _z_loss(draw: random.Random) -> dict[str, Any]:
    """Train with a z-loss: in each micro-batch the mean over ranks of the mean over a rank's tokens."""
    weight = 0.1
    plan = ((0, 2, (0, 3)), (2, 1, (1,)), (3, 1, (2, 4)))
    lengths = [4 * draw.randint(2, 3) for _ in range(5)]  # of which no rank holds padding
    engine = cpu_engine.build_engine(
        cap=16, seed=seed(), shape=EXPERTS, transformer={"moe_z_loss_coeff": weight}
    )
    weights = cpu_engine.weights_of(engine)
    with _clear(lambda: weights):
        batch = cpu_engine.random_batch(lengths, seed=seed() + 5)
    exact = {name: value.double().requires_grad_() for name, value in weights.items()}
    tokens = batch["input_ids"].unbind()
    how: dict[str, Any] = {"heads": cpu_engine.HEADS, "rope": True}
    loss = cpu_reference.token_mean_loss(batch["loss_mask"].unbind())(
        [cpu_reference.log_probs(exact, row, **how) for row in tokens]
    )
    squares = [_router_logits(exact, row).logsumexp(-1).square() for row in tokens]
    shares = [
        size / 4 * torch.cat([squares[i] for i in part], dim=-1).mean(-1).sum() for _, size, part in plan
    ]
    total = loss + weight * torch.stack(shares).sum()
    gradients = torch.autograd.grad(total, list(exact.values()))
    without = torch.autograd.grad(_loss_of(exact, batch), list(exact.values()))
    reference = dict(zip(exact, gradients, strict=True))

    def train() -> dict[str, Any]:
        return cpu_engine.train(engine, batch, SFT)

    with replaced(dynamic_cp_loss, "plan_uniform", lambda *_given: plan):
        output = train()
    apart = cpu_engine.compare(dict(zip(exact, without, strict=True)), reference)[1]
    return judged(engine, output, reference, loss.item(), [], apart=apart)


def _loss_of(exact: dict[str, torch.Tensor], batch: Any) -> torch.Tensor:
    outputs = [
        cpu_reference.log_probs(exact, row, heads=cpu_engine.HEADS, rope=True)
        for row in batch["input_ids"].unbind()
    ]
    return cpu_reference.token_mean_loss(batch["loss_mask"].unbind())(outputs)


# --- optimizer, adapters, bfloat16 ---


def _adapt(model: Any) -> None:
    """Freeze the model, and let each of its linear layers add a product of low rank, as adapters do."""

    def added(module: Any, given: tuple[Any, ...], output: Any) -> Any:
        return output[0] + given[0] @ module.lora_a.T @ module.lora_b.T, output[1]

    for parameter in model.parameters():
        parameter.requires_grad = False
    for name, module in model.named_modules():
        if name.rpartition(".")[2] not in ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"):
            continue
        random = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        rows, columns = module.weight.shape
        for own, shape in (("lora_a", (RANK, columns)), ("lora_b", (rows, RANK))):
            value = 0.2 * torch.randn(shape, generator=random)
            module.register_parameter(own, torch.nn.Parameter(value.to(module.weight.dtype)))
        module.register_forward_hook(added)


def _low_rank(**batch: Any) -> dict[str, Any]:
    """Train adapters on frozen weights for one step."""
    build = functools.partial(cpu_engine.build_engine, adapt=_adapt)
    exact = cpu_reference.loss_and_gradient

    def of_adapters(*given: Any, **how: Any) -> Any:
        loss, gradients = exact(*given, **how)
        return loss, {name: value for name, value in gradients.items() if ".lora_" in name}

    with (
        replaced(cpu_engine, "build_engine", build),
        replaced(cpu_reference, "loss_and_gradient", of_adapters),
    ):
        return run_sft(**batch, shape=cpu_engine.Shape(**PLAIN))


def _short(shape: cpu_engine.Shape, *, lengths: list[int], cap: int, **settings: Any) -> dict[str, Any]:
    """Train in bfloat16, and say how far one process in bfloat16 is from the truth."""
    engine = cpu_engine.build_engine(cap=cap, seed=seed(), shape=shape, ddp={"grad_reduce_in_fp32": True})
    weights = cpu_engine.weights_of(engine)
    batch = cpu_engine.random_batch(lengths, seed=seed() + 1, **settings)
    exactly = functools.partial(
        cpu_reference.loss_and_gradient,
        weights,
        batch["input_ids"].unbind(),
        cpu_reference.token_mean_loss(batch["loss_mask"].unbind()),
        heads=cpu_engine.HEADS,
        rope=True,
    )
    loss, reference = exactly()
    _, rounded = exactly(dtype=torch.bfloat16)
    output = cpu_engine.train(engine, batch, SFT)
    rounding = cpu_engine.compare(rounded, reference)[1]
    return judged(engine, output, reference, loss, [], rounding=rounding)


def steps(
    draw: random.Random, world: int, shape: cpu_engine.Shape, *, low: bool = False, distributed: bool = True
) -> dict[str, Any]:
    """Train some steps with Megatron's optimizer, and compare weights and norms with one process.

    `low`: whether adapters are trained. `distributed`: whether it is Megatron's distributed optimizer, with
    verl's hooks and gradients that are clipped.
    """
    ddp = {"use_distributed_optimizer": True, "overlap_grad_reduce": True, "bucket_size": BUCKET}
    engine = cpu_engine.build_engine(
        cap=CAP, seed=seed(), shape=shape, ddp=ddp if distributed else {}, adapt=_adapt if low else None
    )
    clip = CLIP if distributed else 0.0
    config = OptimizerConfig(
        optimizer="adam",
        lr=RATE,
        adam_eps=EPSILON,
        weight_decay=0.0,
        clip_grad=clip,
        use_distributed_optimizer=distributed,
    )
    optimizer = get_megatron_optimizer(config, engine.module, use_gloo_process_groups=False)
    if distributed:
        register_megatron_training_hooks(engine.module, optimizer)
    before = cpu_engine.weights_of(engine)
    exact = {name: value.double().requires_grad_() for name, value in before.items()}
    moving = {name: value for name, value in exact.items() if not low or ".lora_" in name}
    reference = torch.optim.Adam(moving.values(), lr=RATE, eps=EPSILON)
    losses, norms = [], []
    for step in range(STEPS):
        drawn = batch_of(draw, world, world // 2, micro_batches=2)
        del drawn["cap"]
        clear = _clear(lambda: exact) if shape.experts else contextlib.nullcontext()
        with clear:
            batch = cpu_engine.random_batch(seed=seed() + step, **drawn)
        loss = _loss_of(exact, batch)
        for value, gradient in zip(
            moving.values(), torch.autograd.grad(loss, list(moving.values())), strict=True
        ):
            value.grad = gradient
        norm = torch.nn.utils.clip_grad_norm_(moving.values(), clip or math.inf)
        reference.step()
        optimizer.zero_grad()
        output = cpu_engine.train(engine, batch, SFT)
        _, seen, _ = optimizer.step()
        losses.append((sum(output["loss"]), loss.item()))
        norms.append((float(seen or 0), float(norm)))
    after = cpu_engine.weights_of(engine)
    final = {name: value.detach() for name, value in exact.items()}
    moved = torch.cat([(final[name] - before[name]).flatten() for name in moving])
    groups = engine.module[0].bucket_groups + engine.module[0].expert_parallel_bucket_groups
    return {
        "worst": worst(after, final),
        "still": all(torch.equal(after[name], before[name]) for name in exact if name not in moving),
        "moved": float(moved.norm() / torch.cat([before[name].flatten() for name in moving]).norm()),
        "losses": losses,
        "norms": norms,
        "clip": CLIP,
        "optimizer": type(optimizer.chained_optimizers[0]).__name__,
        "buckets": len(groups),
    }
