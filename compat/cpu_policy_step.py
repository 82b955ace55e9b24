"""A step of a policy on CPU ranks under dynamic context parallelism, held against one process."""

from __future__ import annotations

import functools
import random
from typing import Any

import torch
import torch.distributed as dist
from verl.utils import tensordict_utils as tu
from verl.workers.config import ActorConfig
from verl.workers.utils.losses import ppo_loss

from overlay.compat import cpu_engine, cpu_reference
from overlay.compat.cpu_steps import judged, seed, watched


def run_ppo(  # noqa: PLR0915 -- one step, from the batch to the verdict
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
    engine = cpu_engine.build_engine(cap=5, seed=seed(), per_token_loss=per_token_loss, shape=shape)
    lengths = [prompt + response for prompt, response in zip(prompts, responses, strict=True)]
    batch = cpu_engine.random_batch(lengths, seed=seed() + 2, micro_batch_size_per_gpu=world)
    weights = cpu_engine.weights_of(engine)
    tokens = batch["input_ids"].unbind()

    noise = torch.Generator().manual_seed(seed() + 3)

    now = [
        cpu_reference.log_probs(weights, row, heads=cpu_engine.HEADS, rope=rope).detach() for row in tokens
    ]
    masks = [torch.randint(0, 2, (length,), generator=noise) for length in responses]
    for mask in masks:
        mask[:2] = 1
    batch["prompts"] = cpu_engine.nested([row[:size] for row, size in zip(tokens, prompts, strict=True)])
    batch["responses"] = cpu_engine.nested([row[size:] for row, size in zip(tokens, prompts, strict=True)])
    batch["loss_mask"] = cpu_engine.nested(masks)
    rolled = sum(int(mask.sum()) for mask in masks)
    masks = _rejected(masks) if mode == "token-mean" else masks
    batch["response_mask"] = cpu_engine.nested(masks)
    gains = [torch.randn(length, generator=noise) for length in responses]
    # Far enough from the policy that some tokens are clipped, on both sides: whatever is drawn, the first
    # token of the first sequence is, and its second is not.
    shifts = [0.4 * torch.randn(length, generator=noise) for length in responses]
    gains[0][0], shifts[0][0], shifts[0][1] = 1.0, -1.0, 0.0
    batch["advantages"] = cpu_engine.nested(gains)
    before = [row[-len(shift) :].float() + shift for row, shift in zip(now, shifts, strict=True)]
    batch["old_log_probs"] = cpu_engine.nested(before)
    anchors = [-2 + torch.randn(length, generator=noise) for length in responses]
    batch["ref_log_prob"] = cpu_engine.nested(anchors)
    if entropy:
        tu.assign_non_tensor(batch, calculate_entropy=True)
    config = ActorConfig(
        strategy="megatron", rollout_n=1, loss_agg_mode=mode, ppo_micro_batch_size_per_gpu=1,
        entropy_coeff=entropy, use_kl_loss=bool(kl), kl_loss_coef=kl, kl_loss_type="mse",
    )  # fmt: skip

    def token_terms(per_sequence: Any) -> list[torch.Tensor]:
        terms = []
        for both, advantage, old, anchor, mask in zip(
            per_sequence, gains, before, anchors, masks, strict=True
        ):
            row, spread = both[:, -len(mask) :]
            change = (row - old.double()).exp()
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
        divisor = rolled if mode == "token-mean" else len(masks)
        sizes.append(torch.cat(terms).detach().abs().sum().item() / divisor)
        return torch.cat(terms).sum() / divisor

    value, reference = cpu_reference.loss_and_gradient(
        weights, tokens, loss, heads=cpu_engine.HEADS, rope=rope, outputs=cpu_reference.log_probs_and_entropy
    )
    with watched() as seen:
        output = cpu_engine.train(engine, batch, functools.partial(ppo_loss, config))
    metrics = output["metrics"]
    return judged(
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


def _rejected(masks: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return masks of what is trained: of all but the first the last token is rejected, of the second all.

    What verl divides by is what was rolled out.
    """
    kept = [mask.clone() for mask in masks]
    for mask in kept[1:]:
        mask[-1] = 0
    kept[1].zero_()
    return kept
