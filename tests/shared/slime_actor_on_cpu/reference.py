"""What a training step of slime's has to find, in one process and float64, without slime and Megatron.

One sample at a time, no packing, no parallelism: it shares nothing with the ranks but the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from overlay.compat import cpu_reference
from slime_actor_on_cpu.arguments import Sizes
from slime_actor_on_cpu.weights import drawn


@dataclass(frozen=True)
class Reference:
    """What the whole batch has to give."""

    #: Of each token of each response.
    advantages: list[torch.Tensor]
    #: By weight, of the mean over samples of the mean over the tokens that count.
    gradients: dict[str, torch.Tensor]
    #: That mean, which slime reports.
    loss: float


def shapes(sizes: Sizes, role: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all weights by Megatron's names."""
    hidden, feed_forward, vocabulary = sizes.hidden, sizes.feed_forward, sizes.vocabulary
    queries, keys = sizes.heads * sizes.head, sizes.groups * sizes.head
    found: dict[str, tuple[int, ...]] = {"embedding.word_embeddings.weight": (vocabulary, hidden)}
    for layer in range(sizes.layers):
        prefix = f"decoder.layers.{layer}."
        attention: dict[str, tuple[int, ...]] = {
            "linear_qkv": (queries + 2 * keys, hidden),
            "linear_proj": (hidden, queries),
        }
        if layer < sizes.mixing:
            attention = {"mixing": (hidden, hidden)}
        found |= {f"{prefix}self_attention.{name}.weight": shape for name, shape in attention.items()}
        found |= {prefix + f"{norm}_layernorm.weight": (hidden,) for norm in ("input", "pre_mlp")}
        mlps = [f"mlp.experts.local_experts.{expert}." for expert in range(sizes.experts)] or ["mlp."]
        if sizes.experts:
            found[prefix + "mlp.router.weight"] = (sizes.experts, hidden)
        for mlp in mlps:
            found[prefix + mlp + "linear_fc1.weight"] = (feed_forward, hidden)
            found[prefix + mlp + "linear_fc2.weight"] = (hidden, feed_forward)
    found["decoder.final_layernorm.weight"] = (hidden,)
    found["output_layer.weight"] = (1 if role == "critic" else vocabulary, hidden)
    if role == "critic":
        found["output_layer.bias"] = (1,)
    return found


def reference(args: Any, sizes: Sizes, role: str, data: dict[str, Any]) -> Reference:
    """Return what a step of the actor or of the critic has to find.

    `args`: the arguments of the job. Known are GRPO, with the KL loss `k2`, and the critic of PPO. `sizes`:
    those of the model. `role`: "actor" or "critic". `data`: all samples (`rollouts.samples`).
    """
    more = args.use_tis, args.use_opd, args.use_opsm, args.calculate_per_token_loss
    known = args.kl_coef == 0 and not any(more)
    if args.use_kl_loss:
        known = known and args.kl_loss_type == "k2" and not args.use_unbiased_kl
    if not known or args.advantage_estimator != {"actor": "grpo", "critic": "ppo"}[role]:
        raise NotImplementedError("no reference for these settings")
    weights = _weights(args, sizes, role)
    masks = [torch.tensor(mask, dtype=torch.float64) for mask in data["loss_masks"]]
    found = _outputs(args, weights, sizes, role, data)
    if role == "actor":
        advantages = grpo(args, data["rewards"], masks)
        old = [each[0].detach() for each in found]  # those of this very step
        if args.use_rollout_logprobs:
            old = [torch.tensor(each).double() for each in data["rollout_log_probs"]]
        losses = [policy_loss(args, *trio) for trio in zip(found, old, advantages, strict=True)]
        if args.use_kl_loss:
            with torch.no_grad():
                others = _outputs(args, _weights(args, sizes, "ref"), sizes, role, data)
            away = [(one[0] - other[0]).square() / 2 for one, other in zip(found, others, strict=True)]
            pairs = zip(losses, away, strict=True)
            losses = [loss + args.kl_loss_coef * far for loss, far in pairs]
    else:
        both = [
            gae(args, value.detach(), mask, reward)
            for value, mask, reward in zip(found, masks, data["rewards"], strict=True)
        ]
        advantages = normalised(args, [pair[0] for pair in both], masks)
        losses = [(value - pair[1]).square() for value, pair in zip(found, both, strict=True)]
    means = [(loss * mask).sum() / mask.sum() for loss, mask in zip(losses, masks, strict=True)]
    total = torch.stack(means).mean()
    gradients = torch.autograd.grad(total, list(weights.values()))
    return Reference(advantages, dict(zip(weights, gradients, strict=True)), total.item())


def _weights(args: Any, sizes: Sizes, model: str) -> dict[str, torch.Tensor]:
    return {
        name: drawn(args.seed, model, name, shape).double().requires_grad_()
        for name, shape in shapes(sizes, model).items()
    }


def _outputs(
    args: Any, weights: dict[str, torch.Tensor], sizes: Sizes, role: str, data: dict[str, Any]
) -> list[torch.Tensor]:
    """Return of each response log-probabilities and entropies [2, tokens], or values [tokens].

    The temperature of the rollout is one of the distribution, and not of a value.
    """
    outputs = cpu_reference.values
    if role != "critic":
        outputs, name = cpu_reference.log_probs_and_entropy, "output_layer.weight"
        weights = {**weights, name: weights[name] / args.rollout_temperature}
    return [
        outputs(weights, torch.tensor(tokens), heads=sizes.heads, rope=True)[..., -count:]
        for tokens, count in zip(data["tokens"], data["response_lengths"], strict=True)
    ]


def grpo(args: Any, rewards: list[float], masks: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the advantages of tokens that all get their sample's reward."""
    advantages = [
        torch.full_like(mask, torch.tensor(reward).item())
        for reward, mask in zip(rewards, masks, strict=True)
    ]
    return normalised(args, advantages, masks)


def normalised(args: Any, advantages: list[torch.Tensor], masks: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the advantages by the mean and the deviation of the tokens that count, if the job does so."""
    if not args.normalize_advantages:
        return advantages
    counted = torch.cat([each[mask > 0] for each, mask in zip(advantages, masks, strict=True)])
    deviation = (counted.var() + 1e-8).sqrt()
    return [(each - counted.mean()) / deviation for each in advantages]


def policy_loss(
    args: Any, outputs: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor
) -> torch.Tensor:
    """Return the loss of each token of a response: clipped on one side, and on the other if the job does.

    `args`: the arguments of the job. `outputs`: [2, tokens], log-probabilities and entropies. `old`:
    [tokens], the log-probabilities that ratios are of. `advantages`: [tokens].
    """
    log_probs, entropies = outputs
    ratio = (log_probs - old).exp()
    clipped = ratio.clamp(1 - args.eps_clip, 1 + args.eps_clip_high)
    losses = torch.maximum(-advantages * ratio, -advantages * clipped)
    if args.eps_clip_c is not None:
        most = torch.minimum(losses, -advantages * args.eps_clip_c)
        losses = torch.where(advantages < 0, most, losses)
    loss: torch.Tensor = losses - args.entropy_coef * entropies
    return loss


def gae(
    args: Any, values: torch.Tensor, mask: torch.Tensor, reward: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return advantages and returns of a response whose last token has the reward.

    They are of the tokens that count, as if there were no others; those get 0 and their values.
    """
    advantages = torch.zeros_like(values)
    later, later_value = torch.zeros(()).double(), torch.zeros(()).double()
    counted = [token for token in range(len(values)) if mask[token]]
    for token in reversed(counted):
        gained = reward if token == counted[-1] else 0.0
        delta = gained + args.gamma * later_value - values[token]
        later = delta + args.gamma * args.lambd * later
        advantages[token], later_value = later, values[token]
    return advantages, advantages + values
