"""Samples as a rollout gives them, dealt out to the data parallel ranks by slime's own `RolloutManager`."""

from __future__ import annotations

import inspect
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any


def samples(
    lengths: Sequence[tuple[int, int]],
    rewards: Sequence[float],
    *,
    vocabulary: int,
    seed: int,
    masked: float = 0.2,
) -> dict[str, Any]:
    """Draw the tokens and masks of samples, and return them as `RolloutManager` makes them up for training.

    Args:
        lengths: Of each sample: of prompt and response together, and of the response.
        rewards: What slime makes the advantages of.
        vocabulary: Number of token ids.
        seed: Of the draw.
        masked: The part of the tokens of a response, but for its first and its last, that do not count.

    """
    draw = random.Random(seed)
    data: dict[str, Any] = {
        "tokens": [[draw.randrange(vocabulary) for _ in range(total)] for total, _ in lengths],
        "response_lengths": [response for _, response in lengths],
        "rewards": list(rewards),
        "raw_reward": list(rewards),
        "truncated": [0] * len(lengths),
        "sample_indices": list(range(len(lengths))),
        "rollout_ids": list(range(len(lengths))),
        "loss_masks": [],
        "rollout_log_probs": [[-draw.random() * 8 for _ in range(response)] for _, response in lengths],
    }
    for _, response in lengths:
        mask = [int(draw.random() >= masked) for _ in range(response)]
        mask[0] = mask[-1] = 1
        data["loss_masks"].append(mask)
    data["rollout_mask_sums"] = [sum(mask) for mask in data["loss_masks"]]
    return data


def references(args: Any, parallel: dict[str, Any], data: dict[str, Any]) -> list[Any]:
    """Return what each data parallel rank is handed: references into the object store.

    `args`: the arguments of the job. `parallel`: `train_parallel_config` of an actor. `data`: the samples,
    `samples` for one.
    """
    from slime.ray.rollout import RolloutManager

    # Ray has the class behind the actor.
    manager = RolloutManager.__ray_metadata__.modified_class
    this = SimpleNamespace(args=args, train_parallel_config=parallel)
    split = manager._split_train_data_by_dp
    # Before 0.3 it is told the number of ranks.
    sizes = [parallel["dp_size"]] if "dp_size" in inspect.signature(split).parameters else []
    found: list[Any] = split(this, dict(data), *sizes)
    return found
