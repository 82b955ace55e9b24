"""What a training step of slime's has to find, in one process and float64, without slime and Megatron.

One sample at a time, no packing, no parallelism: it shares nothing with the ranks but the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from overlay.compat import cpu_reference
from overlay.compat.slime_actor_on_cpu.weights import drawn

if TYPE_CHECKING:
    from overlay.compat.slime_actor_on_cpu.arguments import Sizes


@dataclass(frozen=True)
class Reference:
    """What the whole batch has to give."""

    #: Of each token of each response.
    advantages: list[torch.Tensor]
    #: By weight, of the mean over samples of the mean over the tokens that count.
    gradients: dict[str, torch.Tensor]
    loss: float


def shapes(sizes: Sizes, role: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all weights by Megatron's names."""
    hidden, feed_forward, vocabulary = sizes.hidden, sizes.feed_forward, sizes.vocabulary
    queries, keys = sizes.heads * sizes.head, sizes.groups * sizes.head
    found: dict[str, tuple[int, ...]] = {"embedding.word_embeddings.weight": (vocabulary, hidden)}
    for layer in range(sizes.layers):
        prefix = f"decoder.layers.{layer}."
        found |= {
            prefix + "input_layernorm.weight": (hidden,),
            prefix + "self_attention.linear_qkv.weight": (queries + 2 * keys, hidden),
            prefix + "self_attention.linear_proj.weight": (hidden, queries),
            prefix + "pre_mlp_layernorm.weight": (hidden,),
        }
        mlps = [f"mlp.experts.local_experts.{expert}." for expert in range(sizes.experts)] or ["mlp."]
        if sizes.experts:
            found[prefix + "mlp.router.weight"] = (sizes.experts, hidden)
        for mlp in mlps:
            found[prefix + mlp + "linear_fc1.weight"] = (feed_forward, hidden)
            found[prefix + mlp + "linear_fc2.weight"] = (hidden, feed_forward)
    found["decoder.final_layernorm.weight"] = (hidden,)
    found["output_layer.weight"] = (vocabulary if role == "actor" else 1, hidden)
    if role == "critic":
        found["output_layer.bias"] = (1,)
    return found


def reference(args: Any, sizes: Sizes, role: str, data: dict[str, Any]) -> Reference:
    """Return what a step of the actor or of the critic has to find.

    Args:
        args: The arguments of the job. Known are GRPO and PPO without a KL term.
        sizes: Those of the model.
        role: "actor" or "critic".
        data: All samples (`rollouts.samples`).

    """
    known = args.kl_coef == 0 and not args.use_kl_loss and args.rollout_temperature == 1
    if not known or args.advantage_estimator != {"actor": "grpo", "critic": "ppo"}[role]:
        raise NotImplementedError("no reference for these settings")
    weights = {
        name: drawn(args.seed, role, name, shape).double().requires_grad_()
        for name, shape in shapes(sizes, role).items()
    }
    masks = [torch.tensor(mask, dtype=torch.float64) for mask in data["loss_masks"]]
    outputs = cpu_reference.log_probs_and_entropy if role == "actor" else cpu_reference.values
    found = []
    for tokens, count in zip(data["tokens"], data["response_lengths"], strict=True):
        found.append(outputs(weights, torch.tensor(tokens), heads=sizes.heads, rope=True)[..., -count:])
    if role == "actor":
        advantages = grpo(args, data["rewards"], masks)
        losses = [policy_loss(args, *pair) for pair in zip(found, advantages, strict=True)]
    else:
        pairs = [
            gae(args, value.detach(), reward) for value, reward in zip(found, data["rewards"], strict=True)
        ]
        advantages = [pair[0] for pair in pairs]
        losses = [(value - pair[1]).square() for value, pair in zip(found, pairs, strict=True)]
    means = [(loss * mask).sum() / mask.sum() for loss, mask in zip(losses, masks, strict=True)]
    total = torch.stack(means).mean()
    gradients = torch.autograd.grad(total, list(weights.values()))
    return Reference(advantages, dict(zip(weights, gradients, strict=True)), total.item())


def grpo(args: Any, rewards: list[float], masks: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the advantages of tokens that all get their sample's reward, normalised if the job does."""
    advantages = [
        torch.full_like(mask, torch.tensor(reward).item())
        for reward, mask in zip(rewards, masks, strict=True)
    ]
    if not args.normalize_advantages:
        return advantages
    counted = torch.cat([each[mask > 0] for each, mask in zip(advantages, masks, strict=True)])
    deviation = (counted.var() + 1e-8).sqrt()
    return [(each - counted.mean()) / deviation for each in advantages]


def policy_loss(args: Any, outputs: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
    """Return the loss of each token of a response, of which the old log-probability is the new one.

    Args:
        args: The arguments of the job.
        outputs: [2, tokens], log-probabilities and entropies.
        advantages: [tokens].

    """
    log_probs, entropies = outputs
    ratio = (log_probs - log_probs.detach()).exp()
    return -advantages * ratio - args.entropy_coef * entropies


def gae(args: Any, values: torch.Tensor, reward: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return advantages and returns of a response whose last token has the reward."""
    advantages = torch.zeros_like(values)
    later, later_value = torch.zeros(()).double(), torch.zeros(()).double()
    for token in reversed(range(len(values))):
        gained = reward if token == len(values) - 1 else 0.0
        delta = gained + args.gamma * later_value - values[token]
        later = delta + args.gamma * args.lambd * later
        advantages[token], later_value = later, values[token]
    return advantages, advantages + values
