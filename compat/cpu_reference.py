"""The tiny model of `cpu_engine` in one process and float64, written without Megatron.

It is what the distributed runs are held against, so it shares nothing with them but the weights: one
sequence at a time, no packing, no padding, no parallelism.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 - the name that every torch user knows

#: Experts that compute a token, where there are any.
CHOSEN = 2

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    #: Maps the log-probabilities of each sequence to the loss of the whole batch.
    Loss = Callable[[Sequence[torch.Tensor]], torch.Tensor]


def log_probs(
    weights: Mapping[str, torch.Tensor], tokens: torch.Tensor, *, heads: int, rope: bool = False
) -> torch.Tensor:
    """Return the log-probability of each next token.

    Args:
        weights: The full weights by Megatron's names, as `cpu_engine.full_tensors` returns them. They tell
            the number of query groups, whether there are experts, and low-rank adapters (`lora_a`, `lora_b`)
            of a linear layer; a norm without a bias is an RMS norm.
        tokens: [length] token ids of one sequence.
        heads: Number of attention heads.
        rope: Whether queries and keys are turned by their positions.

    Returns:
        [length - 1]: entry i belongs to token i + 1.

    """
    return all_log_probs(weights, tokens, heads=heads, rope=rope).gather(-1, tokens[1:, None]).squeeze(-1)


def log_probs_and_entropy(
    weights: Mapping[str, torch.Tensor], tokens: torch.Tensor, *, heads: int, rope: bool = False
) -> torch.Tensor:
    """Return [2, length - 1]: `log_probs`, and the entropy of the distribution that each is taken from."""
    distribution = all_log_probs(weights, tokens, heads=heads, rope=rope)
    chosen = distribution.gather(-1, tokens[1:, None]).squeeze(-1)
    return torch.stack([chosen, -(distribution.exp() * distribution).sum(dim=-1)])


def values(
    weights: Mapping[str, torch.Tensor], tokens: torch.Tensor, *, heads: int, rope: bool = False
) -> torch.Tensor:
    """Return [length - 1]: what a critic, whose output layer has one row, says at each place but the last."""
    made = _linear(weights, "output_layer", _normed(weights, tokens, heads, rope=rope))
    return made[:-1].squeeze(-1)


def all_log_probs(
    weights: Mapping[str, torch.Tensor],
    tokens: torch.Tensor,
    *,
    heads: int,
    rope: bool = False,
    logits: list[torch.Tensor] | None = None,
) -> torch.Tensor:
    """Return [length - 1, vocabulary]: the log-probabilities of all tokens at each place but the last."""
    scores = _normed(weights, tokens, heads, rope=rope, logits=logits) @ weights["output_layer.weight"].T
    if scores.dtype is torch.bfloat16:
        scores = scores.float()  # as everybody does before a softmax over the vocabulary
    return scores[:-1].log_softmax(dim=-1)


def _normed(
    weights: Mapping[str, torch.Tensor],
    tokens: torch.Tensor,
    heads: int,
    *,
    rope: bool,
    logits: list[torch.Tensor] | None = None,
) -> torch.Tensor:
    """Return [length, hidden]: what the output layer is given."""
    hidden = F.embedding(tokens, weights["embedding.word_embeddings.weight"])
    layer = 0
    while f"decoder.layers.{layer}.input_layernorm.weight" in weights:
        prefix = f"decoder.layers.{layer}."
        normed = _norm(weights, prefix + "input_layernorm", hidden)
        if f"{prefix}self_attention.mixing.weight" in weights:
            hidden = hidden + _mixing(weights, prefix, normed)
        else:
            hidden = hidden + _attention(weights, prefix, normed, heads, rope=rope)
        normed = _norm(weights, prefix + "pre_mlp_layernorm", hidden)
        if f"{prefix}mlp.router.weight" in weights:
            chosen_by = normed @ weights[f"{prefix}mlp.router.weight"].T
            if logits is not None:
                logits.append(chosen_by)
            hidden = hidden + _experts(weights, prefix, normed, chosen_by)
        else:
            hidden = hidden + _feed_forward(weights, prefix + "mlp", normed)
        layer += 1
    return _norm(weights, "decoder.final_layernorm", hidden)


def _feed_forward(weights: Mapping[str, torch.Tensor], name: str, hidden: torch.Tensor) -> torch.Tensor:
    return _linear(weights, name + ".linear_fc2", F.gelu(_linear(weights, name + ".linear_fc1", hidden)))


def _experts(
    weights: Mapping[str, torch.Tensor], prefix: str, hidden: torch.Tensor, logits: torch.Tensor
) -> torch.Tensor:
    """Return what the chosen experts of each token say, by the softmax over those."""
    best, which = logits.topk(CHOSEN, dim=-1)
    shares = torch.zeros_like(logits).scatter(-1, which, best.softmax(dim=-1))
    said = [
        _feed_forward(weights, f"{prefix}mlp.experts.local_experts.{expert}", hidden)
        for expert in range(logits.shape[-1])
    ]
    return (torch.stack(said, dim=-1) * shares[:, None]).sum(dim=-1)


def loss_and_gradient(
    weights: Mapping[str, torch.Tensor],
    sequences: Sequence[torch.Tensor],
    loss: Loss,
    *,
    heads: int,
    rope: bool = False,
    outputs: Callable[..., torch.Tensor] = log_probs,
    dtype: torch.dtype = torch.float64,
) -> tuple[float, dict[str, torch.Tensor]]:
    """Return the loss of the whole batch and its gradient by weight, computed in float64.

    Args:
        weights: The full weights, of any floating type.
        sequences: Token ids, one tensor of shape [length] per sequence.
        loss: Loss of the batch, given each sequence's outputs.
        heads: Number of attention heads.
        rope: Whether queries and keys are turned by their positions.
        outputs: What the loss is made of: `log_probs` or `log_probs_and_entropy`.
        dtype: To compute in another type than float64, for the size of its rounding errors.

    """
    exact = {name: value.detach().to(dtype).requires_grad_() for name, value in weights.items()}
    total = loss([outputs(exact, tokens, heads=heads, rope=rope) for tokens in sequences])
    gradients = torch.autograd.grad(total, list(exact.values()))
    return total.item(), dict(zip(exact, gradients, strict=True))


def token_mean_loss(masks: Sequence[torch.Tensor]) -> Loss:
    """Return the loss of supervised fine-tuning: the mean over the batch's loss tokens of -log p.

    `masks`: one tensor of shape [length] per sequence, 1 where the token counts. The first token of a
    sequence has no prediction and never counts.
    """
    tokens = sum(mask[1:].sum().item() for mask in masks)

    def loss(per_sequence: Sequence[torch.Tensor]) -> torch.Tensor:
        parts = [-(values * mask[1:]).sum() for values, mask in zip(per_sequence, masks, strict=True)]
        return torch.stack(parts).sum() / tokens

    return loss


def _norm(weights: Mapping[str, torch.Tensor], name: str, hidden: torch.Tensor) -> torch.Tensor:
    weight, bias = weights[name + ".weight"], weights.get(name + ".bias")
    if bias is None:
        return F.rms_norm(hidden, weight.shape, weight, eps=1e-5)
    return F.layer_norm(hidden, weight.shape, weight, bias, eps=1e-5)


def _linear(weights: Mapping[str, torch.Tensor], name: str, hidden: torch.Tensor) -> torch.Tensor:
    made = F.linear(hidden, weights[name + ".weight"], weights.get(name + ".bias"))
    if name + ".lora_a" not in weights:
        return made
    return made + hidden @ weights[name + ".lora_a"].T @ weights[name + ".lora_b"].T


def _attention(
    weights: Mapping[str, torch.Tensor], prefix: str, hidden: torch.Tensor, heads: int, *, rope: bool
) -> torch.Tensor:
    # Megatron stores the queries of a group next to the group's key and value.
    qkv = _linear(weights, prefix + "self_attention.linear_qkv", hidden)
    size = weights[prefix + "self_attention.linear_proj.weight"].shape[1] // heads
    groups = (qkv.shape[-1] // size - heads) // 2
    query, key, value = qkv.view(len(hidden), groups, -1, size).split([heads // groups, 1, 1], dim=2)
    query, key, value = (part.flatten(1, 2) for part in (query, key, value))
    if rope:
        query, key = _turned(query), _turned(key)
    key, value = (part.repeat_interleave(heads // groups, dim=1) for part in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query, key) / math.sqrt(query.shape[-1])
    later = torch.ones(len(hidden), len(hidden), dtype=torch.bool).triu(1)
    shares = scores.masked_fill(later, -math.inf).softmax(dim=-1)
    mixed = torch.einsum("hqk,khd->qhd", shares, value).reshape(len(hidden), -1)
    return _linear(weights, prefix + "self_attention.linear_proj", mixed)


def _mixing(weights: Mapping[str, torch.Tensor], prefix: str, hidden: torch.Tensor) -> torch.Tensor:
    """Return what each token has of itself and all before it (`slime_actor_on_cpu.gathered`)."""
    mixed = _linear(weights, prefix + "self_attention.mixing", hidden) / hidden.shape[-1]
    return torch.tanh(mixed.cumsum(dim=0))


def _turned(heads: torch.Tensor) -> torch.Tensor:
    """Return [length, heads, size] turned by its positions, the halves of a head being the pairs."""
    half = heads.shape[-1] // 2
    rates = 10000.0 ** (-torch.arange(half, dtype=heads.dtype) / half)
    angles = torch.arange(len(heads), dtype=heads.dtype)[:, None, None] * rates
    left, right = heads[..., :half], heads[..., half:]
    return torch.cat(
        [left * angles.cos() - right * angles.sin(), right * angles.cos() + left * angles.sin()], dim=-1
    )
