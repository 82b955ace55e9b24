"""Steps of verl's engine on CPU ranks under dynamic context parallelism, each held against one process.

A step returns figures, and asserts nothing. Inputs are drawn from `OVERLAY_TEST_SEED`, alike on all ranks.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
from collections.abc import Iterator
from typing import Any

import torch
from verl.utils import megatron_utils
from verl.utils import tensordict_utils as tu
from verl.workers.utils.losses import sft_loss

from overlay.compat import cpu_engine, cpu_reference
from overlay.compat.cuda_on_cpu import replaced


def seed() -> int:
    """Return the number from which a run draws, the same on all ranks: it is that of `OVERLAY_TEST_SEED`."""
    return random.Random(os.environ["OVERLAY_TEST_SEED"]).randrange(2**31)  # noqa: S311 -- no secret


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
        cap=cap, seed=seed(), per_token_loss=per_token_loss, sequence_parallel=sequence_parallel, shape=shape
    )
    batch = cpu_engine.random_batch(lengths, seed=seed() + 1, **settings)
    loss, reference = cpu_reference.loss_and_gradient(
        cpu_engine.weights_of(engine),
        batch["input_ids"].unbind(),
        cpu_reference.token_mean_loss(batch["loss_mask"].unbind()),
        heads=cpu_engine.HEADS,
        rope=shape is not None and shape.rope,
    )
    with watched() as seen:
        output = cpu_engine.train(engine, batch, functools.partial(sft_loss, None))
    return judged(engine, output, reference, loss, seen, case={"lengths": lengths, "cap": cap, **settings})


def judged(
    engine: Any,
    output: dict[str, Any],
    reference: dict[str, torch.Tensor],
    loss: float,
    seen: list[dict[str, Any]],
    **more: Any,
) -> dict[str, Any]:
    """Return how a step compares with that of one process.

    Args:
        engine: That has trained.
        output: What training returned.
        reference: The gradient in float64, by parameter.
        loss: The loss in float64.
        seen: What this rank had of each micro-batch (`watched`).
        more: What else is returned.

    """
    gradients = cpu_engine.gradients_of(engine)
    ratio, error = cpu_engine.compare(gradients, reference)
    source = engine.is_mp_src_rank_with_outputs()
    metrics = cpu_engine.reported_metrics(engine, output) if source else {}
    return {
        "ratio": ratio,
        "error": error,
        "worst": worst(gradients, reference),
        "turned": turned(gradients, reference),
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


def turned(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> float:
    """Return how far the directions are apart, whatever the sizes: |g/|g| - g_ref/|g_ref||."""
    one = torch.cat([got[name].double().flatten() for name in want])
    other = torch.cat([value.double().flatten() for value in want.values()])
    return float((one / one.norm() - other / other.norm()).norm())


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
    engine = cpu_engine.build_engine(cap=cap, seed=seed(), sequence_parallel=sequence_parallel, shape=shape)
    batch = cpu_engine.random_batch(lengths, seed=seed() + 4, calculate_sum_pi_squared=True, **settings)
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
