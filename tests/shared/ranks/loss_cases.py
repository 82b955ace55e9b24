"""Every loss that verl registers, and users do, under dynamic context parallelism (see `ranks.engine_main`).

The reference is verl's own loss function in one process and float64, micro-batch by micro-batch, added up as
verl's engine does. Sequences are dealt out unevenly, so that a mean over a part is not that of the whole.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from dynamic_cp_cases import Case
from loss_batches import by_verl, dealt, draws, policy_batch
from loss_kinds import BYPASSES, half, kinds, loss_of, mean_of_sequences, plain_sum
from megatron.core import parallel_state as mpu
from verl.utils import tensordict_utils as tu
from verl.utils.metric import AggregationType, Metric
from verl.workers.engine.megatron import transformer_impl
from verl.workers.utils.losses import ppo_loss

from overlay.compat import cpu_engine, cpu_reference
from overlay.compat.cpu_steps import seed, watched, worst
from overlay.compat.cuda_on_cpu import replaced
from overlay.patches._dynamic_cp.losses import is_sum
from overlay.patches.verl.dynamic_cp_loss import fix as dynamic_cp_loss

MICRO_BATCHES = 2
#: Losses that are means or choices over what is at hand: tried with subgroups of one size, too.
OTHERS = ("clip_cov", "kl_cov", "geo_mean")
#: Those tried with micro-batches as they are planned. Not `kl_cov`: where but two tokens of a micro-batch
#: count, one stands out as much as the other, and which is chosen is a matter of rounding.
PLANNED = ("vanilla", "clip_cov", "geo_mean")
#: Tensor and pipeline parallel sizes.
MODEL_PARALLEL = {"tensor": (2, 1), "pipeline": (1, 2)}


def cases(world: int) -> list[Case]:
    """Return the cases for a world of this size."""
    draw = random.Random(f"{os.environ['OVERLAY_TEST_SEED']}/losses/{world}")
    found: list[tuple[str, Callable[[], Any]]] = [
        (f"{name}, {layout}", functools.partial(run, draw, layout, **settings))
        for name, settings in kinds().items()
        for layout in ((2, "mixed") if name in OTHERS else ("mixed",))
    ]
    by_tokens = {"use_dynamic_bsz": True, "max_token_len_per_gpu": 9}
    for name in PLANNED:
        step = functools.partial(run, draw, None, mode="seq-mean-token-mean", batch_settings=by_tokens)
        found.append((f"planned, {name}", functools.partial(step, loss_mode=name)))
    found += [
        ("evaluation", functools.partial(run, draw, 1, loss_mode="geo_mean", infer=True)),
        ("once for each micro-batch", functools.partial(_calls, draw)),
        ("random state", functools.partial(_random_state, draw)),
        ("losses that differ", functools.partial(_differing, draw)),
        ("after those that differ", functools.partial(run, draw, 1, loss_mode="geo_mean")),
    ]
    flat: list[Case] = [(name, 1, 1, case) for name, case in found]
    for kind, (tensor, pipeline) in MODEL_PARALLEL.items():
        for name in ("geo_mean", "clip_cov", "user half", "width"):
            case = functools.partial(run, draw, 2, **kinds()[name])
            flat.append((f"{kind}/{name}", tensor, pipeline, case))
    bypass: dict[str, Any] = {"loss_mode": "bypass_mode", "correction": BYPASSES["normalised"]}
    return [*flat, ("pipeline/normalised", 1, 2, functools.partial(run, draw, 1, **bypass))]


def run(
    draw: random.Random,
    layout: int | str | None,
    *,
    loss: Callable[..., Any] | None = None,
    function: Callable[..., Any] = ppo_loss,
    distillation: dict[str, Any] | None = None,
    by_width: bool = False,
    native: bool = False,
    per_token_loss: bool = False,
    micro_batches: int = MICRO_BATCHES,
    infer: bool = False,
    batch_settings: dict[str, Any] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Train one step with a loss, and compare the gradient and what is reported with one process.

    Args:
        draw: What to draw batch and plans from.
        layout: C, or "mixed", or nothing: then plans are the patch's own.
        loss: A loss that needs no configuration, in place of `function`.
        function: A loss of a configuration.
        distillation: Settings of a distillation, if there is one.
        by_width: Whether the width of the batch is to stand in for `loss_scale_factor`.
        native: Whether the reference has it from verl, not from the test.
        per_token_loss: Megatron's setting.
        micro_batches: How many.
        infer: Whether the loss is evaluated without a gradient.
        batch_settings: verl's, of the batch.
        settings: Of `config_of`.

    """
    ranks = mpu.get_data_parallel_world_size()
    engine = cpu_engine.build_engine(cap=9, seed=seed(), per_token_loss=per_token_loss)
    weights = cpu_engine.weights_of(engine)
    count = MICRO_BATCHES * (ranks + 3)
    sizes = {"micro_batch_size_per_gpu": count // micro_batches, **(batch_settings or {})}
    log_probs = functools.partial(cpu_reference.log_probs, weights, heads=cpu_engine.HEADS)
    batch = policy_batch(draw, log_probs, count, **sizes)
    tu.assign_non_tensor(batch, calculate_entropy=bool(settings.get("entropy")))
    fresh = functools.partial(loss_of, loss=loss, function=function, distillation=distillation, **settings)
    plans = [dealt(draw, count // micro_batches, ranks, layout or 1) for _ in range(micro_batches)]
    # Far apart, as other draws leave them.
    torch.manual_seed(dist.get_rank())
    with contextlib.ExitStack() as watching:
        if layout is not None:
            queue = iter(plans)
            watching.enter_context(replaced(dynamic_cp_loss, "plan_uniform", lambda *_: next(queue)))
        made = watching.enter_context(_micro_batches(len(batch)))
        seen = watching.enter_context(watched())
        drawn = watching.enter_context(draws())
        output = (cpu_engine.infer if infer else cpu_engine.train)(engine, batch, fresh())
    width = int(batch["responses"].offsets().diff().max())
    meant: dict[str, Any] = {"factor": width} if by_width and not native else {}
    with draws(_of_last_stage(drawn)):
        value, reference = cpu_reference.loss_and_gradient(
            weights,
            batch["input_ids"].unbind(),
            by_verl(fresh(**meant), made, int(batch["loss_mask"].sum())),
            heads=cpu_engine.HEADS,
            outputs=cpu_reference.log_probs_and_entropy,
        )
    source = engine.is_mp_src_rank_with_outputs()
    found: dict[str, Any] = {
        "loss": value,
        "loss everywhere": sum(output["loss"]) if output else None,
        "reported": cpu_engine.reported_metrics(engine, output)["loss"] if source else None,
        "source": source,
        "parts": [[part["size"], part["sequences"]] for part in seen],
        "micro-batches": len(made),
        "as a sum": is_sum(fresh()),
        "drawn": [float(one.double().sum()) for one in drawn],
        "sums": {
            name: float(metric.aggregate())
            for name, metric in output.get("metrics", {}).items()
            if isinstance(metric, Metric) and metric.aggregation is AggregationType.SUM
        },
        "model outputs": sorted(output.get("model_output", {})),
    }
    if not infer:
        gradients = cpu_engine.gradients_of(engine)
        ratio, error = cpu_engine.compare(gradients, reference)
        found.update(ratio=ratio, error=error, worst=worst(gradients, reference))
    return found


def _of_last_stage(drawn: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return what a rank of the last pipeline stage has drawn: the others have no loss."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, drawn)
    own: list[torch.Tensor] = drawn if mpu.is_pipeline_last_stage() else everyone[-1]
    return own


@contextlib.contextmanager
def _micro_batches(count: int) -> Iterator[list[tuple[list[int], Any]]]:
    """Yield a list, in which the places of its sequences and each micro-batch are noted."""
    made: list[tuple[list[int], Any]] = []
    prepare = transformer_impl.prepare_micro_batches

    def noted(*given: Any, **named: Any) -> Any:
        parts, indices = prepare(*given, **named)
        places = iter(range(count))
        for at, part in enumerate(parts):
            made.append((indices[at] if indices else [next(places) for _ in range(len(part))], part))
        return parts, indices

    with replaced(transformer_impl, "prepare_micro_batches", noted):
        yield made


# --- other cases ---


def _calls(draw: random.Random) -> dict[str, Any]:
    """Count how often each rank calls a loss that is not known, and on how many sequences."""
    calls: list[int] = []

    def counting(model_output: Any, data: Any, dp_group: Any = None) -> Any:
        calls.append(len(data))
        return mean_of_sequences(model_output, data, dp_group)

    found = run(draw, 1, loss=counting)
    # The reference calls it as well, afterwards.
    return {
        "calls": calls[: found["micro-batches"]],
        "all": len(calls),
        "micro-batches": found["micro-batches"],
    }


def _random_state(draw: random.Random) -> dict[str, Any]:
    """Return whether a loss that draws leaves the random state as it was."""
    kept: list[bool] = []

    def drawing(model_output: Any, data: Any, dp_group: Any = None) -> Any:
        return half(model_output, data, dp_group)

    post = transformer_impl.MegatronEngineWithLMHead.postprocess_micro_batch_func

    def compared(*given: Any, **named: Any) -> Any:
        before = torch.get_rng_state()
        result = post(*given, **named)
        kept.append(torch.equal(before, torch.get_rng_state()))
        return result

    with replaced(transformer_impl.MegatronEngineWithLMHead, "postprocess_micro_batch_func", compared):
        run(draw, 1, loss=drawing)
    return {"kept": kept}


def _differing(draw: random.Random) -> dict[str, Any]:
    """Give the last rank another loss than the others, none of which was there before."""
    last = dist.get_rank() == dist.get_world_size() - 1

    def one(model_output: Any, data: Any, dp_group: Any = None) -> Any:
        return plain_sum(model_output, data, dp_group)

    def other(model_output: Any, data: Any, dp_group: Any = None) -> Any:
        return plain_sum(model_output, data, dp_group)

    return run(draw, 1, loss=other if last else one)
